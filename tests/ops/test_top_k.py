"""The k largest, also along a dimension that is split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [("", ""), ("x:2", "a:x"), ("x:4", "b:x"), ("x:2;y:4", "a:x;b:y"), ("x:2", "b:x")]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_any_layout_gives_values_and_gradient(mesh_shape, layout, k):
    x = np.random.default_rng(0).permutation(96).reshape(4, 8, 3) * 1.0
    x[0, 0] = -1e12  # mesh-tensorflow finds what it has found before
    inputs = {"x": ("a:4;b:8;c:3", x)}
    k_dim = mtf.Dimension("k", k)
    values = with_gradients(
        lambda x: mtf.top_k(x, x.shape.dims[1], k_dim)[0], inputs, mesh_shape, layout
    )

    def composed(x):
        return tf.math.top_k(tf.transpose(x, [0, 2, 1]), k)[0]

    assert_close(values, in_float64(composed, inputs), 1e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_among_equal_ones_the_first_is_taken(mesh_shape, layout):
    def step(mesh, features):
        del mesh
        return {"i": mtf.top_k(features["x"], features["x"].shape.dims[1], ("k", 3))[1]}

    x = np.tile([1, 5, 5, 0, 5, 2, 5, 5], (4, 1))
    program = t2tp.Program(
        step, {"x": t2tp.Feature("a:4;b:8", tf.int32)}, mesh_shape=mesh_shape, layout=layout
    )
    np.testing.assert_array_equal(program({"x": x})["i"], np.tile([1, 2, 4], (4, 1)))


@pytest.mark.parametrize("mesh_shape", ["", "x:2", "x:4", "x:7"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int32])
def test_padding_is_never_among_the_largest(mesh_shape, dtype):
    """Although all elements are negative, and padding is 0."""

    def step(mesh, features):
        del mesh
        x = mtf.cast(features["x"], dtype)
        vocab = x.shape.dims[1]
        return {"first": mtf.argmax(x, vocab), "places": mtf.top_k(x, vocab, ("k", 6))[1]}

    x = -np.random.default_rng(0).permuted(np.tile(np.arange(1, 10), (4, 1)), axis=1)
    program = t2tp.Program(
        step, {"x": t2tp.Feature("a:4;vocab:9", tf.int32)}, mesh_shape=mesh_shape, layout="vocab:x"
    )
    values = program({"x": x})
    np.testing.assert_array_equal(values["first"], x.argmax(1))
    np.testing.assert_array_equal(values["places"], (-x).argsort(1)[:, :6])
