"""Casts: what they convert, and what becomes of a sum over the mesh that is still to be made."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf

X = np.full((8, 3), 1.0, np.float32)
X[0] = 256.0  # In bfloat16, 256 + 1 is 256.


def program(step, mesh_shape="x:8"):
    feature = t2tp.Feature("a:8;b:3", tf.float32)
    return t2tp.Program(step, {"x": feature}, mesh_shape=mesh_shape, layout="a:x")


def total(x):
    return mtf.reduce_sum(x, reduced_dim=x.shape.dims[0])


def test_a_widened_sum_is_made_in_the_wider_dtype():
    summed = program(lambda _, f: {"y": mtf.cast(total(mtf.cast(f["x"], tf.bfloat16)), tf.float32)})
    np.testing.assert_array_equal(summed({"x": X})["y"], [263.0] * 3)
    assert summed.collectives() == {("allreduce", ("x",)): (1, 3 * 4)}


def test_a_sum_that_is_needed_narrow_too_is_made_once():
    def step(_, features):
        narrow = total(mtf.cast(features["x"], tf.bfloat16))
        return {"wide": mtf.cast(narrow, tf.float32), "square": mtf.square(narrow)}

    both = program(step)
    both({"x": X})
    ((_, (count, _)),) = both.collectives().items()
    assert count == 1


@pytest.mark.parametrize("dtype", [tf.int32, tf.bfloat16, tf.float64])
def test_a_cast_back_has_the_values_and_the_gradient_of_its_input(dtype):
    def step(_, features):
        x = features["x"]
        y = mtf.cast(mtf.cast(x, dtype), tf.float32)
        if not dtype.is_floating:
            return {"y": y, "d_x": y}
        return {"y": y, "d_x": mtf.gradients([mtf.reduce_sum(y * y)], [x])[0]}

    outputs = program(step, "x:2")({"x": X})
    np.testing.assert_array_equal(outputs["y"], X)
    if dtype.is_floating:
        np.testing.assert_array_equal(outputs["d_x"], 2 * X)
