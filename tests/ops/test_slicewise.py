"""Operations with several outputs, of which some go unused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from tests.ops.on_mesh import with_gradients

X = np.random.default_rng(0).normal(size=(4, 6))
WEIGHTS = 1.5 + np.sin(np.arange(24.0))


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:2", "a:x")])
def test_the_gradient_of_parts_that_are_not_used_is_zero(mesh_shape, layout):
    def second_part(x):
        return mtf.unstack(x, x.shape.dims[1])[1]

    values = with_gradients(second_part, {"x": ("a:4;b:6", X)}, mesh_shape, layout)
    wanted = np.zeros((4, 6))
    wanted[:, 1] = WEIGHTS[:4]
    np.testing.assert_allclose(values["y"], X[:, 1], rtol=1e-6)
    np.testing.assert_allclose(values["d_x"], wanted, rtol=1e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:2", "a:x")])
def test_one_output_of_a_function_of_slices(mesh_shape, layout):
    def square(x):
        _, y = mtf.slicewise(
            lambda x: (tf.sin(x), tf.square(x)),
            [x],
            [x.shape, x.shape],
            [x.dtype, x.dtype],
            splittable_dims=x.shape.dims,
        )
        return y

    values = with_gradients(square, {"x": ("a:4;b:6", X)}, mesh_shape, layout)
    np.testing.assert_allclose(values["y"], X**2, rtol=1e-6)
    np.testing.assert_allclose(values["d_x"], 2 * X * WEIGHTS.reshape(4, 6), rtol=1e-5)


def test_a_dimension_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="has no dimension"):
        with_gradients(lambda x: mtf.unstack(x, mtf.Dimension("z", 2))[0], {"x": ("a:4;b:6", X)})
