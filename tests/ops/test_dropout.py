"""Dropout uses the same mask for value and gradient, and on any mesh."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.ops.attention.api import attention
from tests.ops.on_mesh import with_gradients

ONES = {"x": ("a:64;b:256", np.ones((64, 256)))}
WEIGHTS = 1.5 + np.sin(np.arange(64.0 * 256)).reshape(64, 256)


def test_the_gradient_has_the_mask_of_the_value():
    values = with_gradients(lambda x: mtf.dropout(x, True, rate=0.25), ONES)
    kept = values["y"] != 0
    np.testing.assert_allclose(values["y"], kept / 0.75, rtol=1e-6)
    np.testing.assert_allclose(values["d_x"], kept * WEIGHTS / 0.75, rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 0.01  # 3 standard deviations


@pytest.mark.parametrize(("mesh_shape", "layout"), [("x:2;y:4", "a:x;b:y"), ("x:8", "b:x")])
def test_any_mesh_gives_the_same_mask(mesh_shape, layout):
    def op(x):
        return mtf.dropout(x, True, keep_prob=0.5, noise_shape=x.shape.dims[1:])

    values, wanted = with_gradients(op, ONES, mesh_shape, layout), with_gradients(op, ONES)
    for name in wanted:
        np.testing.assert_array_equal(values[name], wanted[name])
    assert (values["y"] == values["y"][0]).all()


def test_half_precision_drops_what_float32_drops():
    """0.9 has no exact bfloat16, and most random numbers have none either."""

    def op(x):
        return mtf.dropout(x, True, keep_prob=0.9)

    short, full = (with_gradients(op, ONES, dtype=d) for d in (tf.bfloat16, tf.float32))
    np.testing.assert_array_equal(short["y"] == 0, full["y"] == 0)


def slope(y, x):
    """Returns the factor between y and x, fitted where y is not 0."""
    kept = y != 0
    return (y[kept] * x[kept]).sum() / np.square(x[kept]).sum()


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5])
def test_half_precision_has_no_bias(rate):
    """The rounding of single elements averages out; a rounded scale would not."""
    x = np.random.default_rng(0).normal(size=(64, 256)).astype(tf.bfloat16.as_numpy_dtype)
    x = x.astype(np.float64)
    values = with_gradients(
        lambda x: mtf.dropout(x, True, rate=rate), {"x": ("a:64;b:256", x)}, dtype=tf.bfloat16
    )
    assert slope(values["y"], x) * (1 - rate) == pytest.approx(1, abs=1e-4)
    weights = WEIGHTS.astype(tf.bfloat16.as_numpy_dtype).astype(np.float64)
    assert slope(values["d_x"], weights) * (1 - rate) == pytest.approx(1, abs=6e-4)


@pytest.mark.parametrize(("rate", "method"), [(0.05, "dense"), (0.1, "blockwise")])
def test_attention_in_half_precision_has_no_bias(rate, method):
    """Queries are 0, so all values have the same weight."""
    shape = {"q": "batch:4;heads:4;length:32;d_kv:16", "k": "batch:4;heads:4;memory:32;d_kv:16"}
    random = np.random.default_rng(0).normal(size=(4, 4, 32, 16))
    values = {"q": np.zeros_like(random), "k": random, "v": random}
    inputs = {name: (shape.get(name, shape["k"]), x) for name, x in values.items()}

    def bias(dropout_rate):
        def op(q, k, v):
            return attention(q, k, v, dropout_rate=dropout_rate, method=method)

        short, full = (with_gradients(op, inputs, dtype=d)["y"] for d in (tf.bfloat16, tf.float32))
        return slope(short, full)

    # Relative to the same matmuls without dropout, because matmuls on CPUs are biased.
    assert bias(rate) / bias(0.0) == pytest.approx(1, abs=5e-4)
