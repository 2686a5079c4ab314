"""Means of 16 bits, whose sums would be infinite."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:2", "a:x")])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_the_mean_is_finite(mesh_shape, layout, dtype):
    def step(mesh, features):
        y = mtf.reduce_mean(features["x"])
        return {"y": y, "dx": mtf.gradients([y], [features["x"]])[0]}

    program = t2tp.Program(
        step, {"x": t2tp.Feature("a:8;b:1024", dtype)}, mesh_shape=mesh_shape, layout=layout
    )
    outputs = program({"x": np.full([8, 1024], 100.0)})
    assert outputs["y"].dtype == dtype.as_numpy_dtype
    assert outputs["y"] == 100.0
    assert (outputs["dx"] == 2.0**-13).all()


def test_layer_norm_of_mesh_tensorflows_layers_is_right_in_float16():
    def step(mesh, features):
        x = features["x"]
        return {"y": mtf.layers.layer_norm(x, x.shape.dims[-1])}

    x = 5.0 * np.random.default_rng(0).normal(size=(2, 4096))
    y = t2tp.Program(step, {"x": t2tp.Feature("a:2;b:4096", tf.float16)})({"x": x})["y"]
    np.testing.assert_allclose(y.std(axis=-1, dtype=np.float32), 1.0, atol=2e-3)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ("a:4", tf.int32, "'x:0' is int32.* cast it first, mtf.cast"),
        ("a:0;b:3", tf.float32, "is empty, and has no mean"),
    ],
)
def test_what_has_no_mean_is_refused(shape, dtype, message):
    with pytest.raises(ValueError, match=message):
        t2tp.Program(
            lambda mesh, given: {"y": mtf.reduce_mean(given["x"])},
            {"x": t2tp.Feature(shape, dtype)},
        )
