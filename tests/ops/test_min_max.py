"""Largest and smallest: ties share the gradient, wherever they are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [("", ""), ("x:2", "a:x"), ("x:4", "b:x"), ("x:2;y:2", "a:x;b:y")]
TIES = np.array([[1, 3, 3, 0, 3, 3, 2, 1], [5, 1, 2, 3, 4, 0, 0, 0], [7] * 8, range(8)], float)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize(
    ("op", "composed"), [(mtf.reduce_max, tf.reduce_max), (mtf.reduce_min, tf.reduce_min)]
)
def test_reductions_share_the_gradient_among_ties(mesh_shape, layout, op, composed):
    """TensorFlow's own reductions do too."""
    inputs = {"x": ("a:4;b:8", TIES)}
    values = with_gradients(
        lambda x: op(x, reduced_dim=x.shape.dims[1]), inputs, mesh_shape, layout
    )
    assert_close(values, in_float64(lambda x: composed(x, axis=1), inputs), 1e-6)


def test_a_whole_tensor_of_ties_in_bfloat16():
    inputs = {"x": ("a:1024", np.ones(1024))}
    d_x = with_gradients(mtf.reduce_max, inputs, "x:2", "a:x", tf.bfloat16)["d_x"]
    np.testing.assert_array_equal(d_x, np.full(1024, 1.5 / 1024))


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize(("op", "numpy_op"), [(mtf.maximum, np.maximum), (mtf.minimum, np.minimum)])
def test_two_that_tie_share_the_gradient_and_it_has_their_shapes(mesh_shape, layout, op, numpy_op):
    other = np.array([1, 2, 3, 0, 3, 1, 2, 9.0])
    inputs = {"x": ("a:4;b:8", TIES), "z": ("b:8", other)}
    values = with_gradients(lambda x, z: op(x, z), inputs, mesh_shape, layout)
    y = numpy_op(TIES, other)
    dy = 1.5 + np.sin(np.arange(32.0)).reshape(4, 8)
    from_x, from_z = (y == TIES) * 1.0, (y == other) * 1.0
    share = dy / (from_x + from_z)
    np.testing.assert_array_equal(values["y"], y)
    np.testing.assert_allclose(values["d_x"], share * from_x, rtol=1e-5)
    np.testing.assert_allclose(values["d_z"], (share * from_z).sum(0), rtol=1e-5)


def test_a_number_may_be_one_of_the_two():
    values = with_gradients(lambda x: mtf.maximum(3.0, x), {"x": ("a:4;b:8", TIES)})
    np.testing.assert_array_equal(values["y"], np.maximum(3, TIES))


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:2", "n:x"), ("x:3", "c:x")])
@pytest.mark.parametrize("kind", ["MAX_2D", "MAX_3D"])
def test_ties_in_a_window_of_max_pooling_share_its_gradient(mesh_shape, layout, kind):
    x = np.random.default_rng(0).integers(0, 2, (2, 2, 4, 4, 3)).astype(float)
    pool = mtf.layers.max_pool2d if kind == "MAX_2D" else mtf.layers.max_pool3d
    depth = 1 if kind == "MAX_2D" else 2
    size = (2, 2) if kind == "MAX_2D" else [2, 2, 2]

    def composed(x):
        windows = tf.reshape(x, [2, 2 // depth, depth, 2, 2, 2, 2, 3])
        windows = tf.transpose(windows, [0, 1, 3, 5, 7, 2, 4, 6])
        return tf.reduce_max(tf.reshape(windows, [2, 2 // depth, 2, 2, 3, -1]), axis=-1)

    inputs = {"x": ("n:2;d:2;h:4;w:4;c:3", x)}
    values = with_gradients(lambda x: pool(x, ksize=size), inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed, inputs), 1e-6)
