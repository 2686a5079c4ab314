"""Attention in 16 bits computes the softmax and its gradient in float32."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2tp.ops.attention.api import attention
from tests.ops.attention.composed_attention import composed_attention
from tests.ops.on_mesh import _weights, in_float64, with_gradients

SIZES = [1, 2, 96, 32]  # batch, heads, length, d_kv
LENGTH = "batch:1;heads:2;length:96;d_kv:32"
MEMORY = "batch:1;heads:2;memory:96;d_kv:32"


def make_inputs():
    """Gives keys and values a mean of 3, so that the rounding of means does not average out."""
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=SIZES) for _ in range(3))
    return {"q": (LENGTH, q), "k": (MEMORY, k + 3.0), "v": (MEMORY, v + 3.0)}


def with_float32_softmax(inputs, dtype):
    """Returns gradients w.r.t. q, k and v: products in 16 bits, the softmax in float32."""

    def wide(x):
        return tf.cast(x, tf.float32)

    q, k, v = (tf.cast(array, dtype) for _, array in inputs.values())
    dy = tf.cast(_weights(SIZES), dtype)
    q *= tf.constant(SIZES[-1] ** -0.5, dtype)
    weights = tf.nn.softmax(wide(tf.matmul(q, k, transpose_b=True)))
    d_weights = tf.matmul(wide(dy), wide(v), transpose_b=True)
    mean = tf.reduce_sum(weights * d_weights, -1, keepdims=True)
    d_scores = tf.cast(weights * (d_weights - mean), dtype)
    return {
        "d_q": tf.matmul(d_scores, k) * tf.constant(SIZES[-1] ** -0.5, dtype),
        "d_k": tf.matmul(d_scores, q, transpose_a=True),
        "d_v": tf.matmul(tf.cast(weights, dtype), dy, transpose_a=True),
    }


def relative_error(value, wanted):
    return np.linalg.norm(np.asarray(value, np.float64) - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("method", ["dense", "blockwise", "ring"])
@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:2", "length:x;memory:x")])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_gradients_are_those_of_a_float32_softmax(method, mesh_shape, layout, dtype):
    inputs = make_inputs()
    call = functools.partial(attention, method=method, block_size=32)
    ours = with_gradients(call, inputs, mesh_shape, layout, dtype)
    exact = in_float64(composed_attention(), inputs, dtype)
    for name, value in with_float32_softmax(inputs, dtype).items():
        error, least = relative_error(ours[name], exact[name]), relative_error(value, exact[name])
        assert error < 1.5 * least, (name, error, least)
