"""Attention with the whole score matrix in memory: the fastest for short lengths."""

from __future__ import annotations

import tensorflow as tf

from t2tp.ops.attention_block import Block, collected, products, weighted
from t2tp.ops.attention_mask import MASKED
from t2tp.ops.attention_terms import Gradients, Terms


def forward(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, terms: Terms) -> tuple[tf.Tensor, tf.Tensor]:
    """The result, and the attention weights before dropout.

    Args:
      q: [batch, heads, length, d_kv], scaled.
      k: [batch, kv_heads, memory_length, d_kv].
      v: likewise.
      terms: what else is in the scores.

    Returns:
      [batch, heads, length, d_kv] and [batch, heads, length, memory_length] in the dtype of q.
    """
    block = _whole(q, k, terms)
    scores = terms.added(tf.cast(products(q, k), tf.float32), block)
    weights = tf.nn.softmax(scores)
    if terms.mask.may_be_blind:
        highest = tf.reduce_max(scores, axis=-1, keepdims=True)
        weights = tf.where(highest < MASKED / 2, 0.0, weights)
    weights = tf.cast(weights, q.dtype)
    if terms.dropout is None:
        return weighted(weights, v), weights
    y = weighted(terms.dropout.dropped(weights, block), v)
    return y * tf.cast(terms.dropout.scale, y.dtype), weights


def backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    y: tf.Tensor,
    weights: tf.Tensor,
    dy: tf.Tensor,
    terms: Terms,
) -> Gradients:
    """Gradients by q (scaled), k, v and the bias; that of the softmax in float32."""
    block = _whole(q, k, terms)
    used, wide_weights, wide_dy = weights, tf.cast(weights, tf.float32), tf.cast(dy, tf.float32)
    if terms.dropout is not None:
        wide_dy *= terms.dropout.scale
        used = terms.dropout.dropped(weights, block)
    d_weights = products(wide_dy, tf.cast(v, tf.float32))
    if terms.dropout is not None:
        d_weights = terms.dropout.dropped(d_weights, block)
    if y.dtype.size >= 4:
        # sum_m weights * d_weights, for less.
        mean = tf.reduce_sum(tf.cast(dy * y, tf.float32), -1, keepdims=True)
    else:
        # The gradients by a query's scores add up to 0. With the mean of the rounded y, or without
        # the sum of the rounded weights, they would not: by more than they are, where the values
        # have something in common.
        mean = tf.reduce_sum(wide_weights * d_weights, -1, keepdims=True)
        mean = tf.math.divide_no_nan(mean, tf.reduce_sum(wide_weights, -1, keepdims=True))
    d_scores = wide_weights * (d_weights - mean)
    d_bias = None
    if terms.bias is not None:
        d_bias = terms.bias.with_gradient(terms.bias.no_gradient(), block, d_scores)
    kv_heads = k.shape[1]
    d_scores = tf.cast(d_scores, q.dtype)
    return Gradients(
        weighted(d_scores, k),
        collected(d_scores, q, kv_heads),
        collected(used, tf.cast(wide_dy, dy.dtype), kv_heads),
        d_bias,
    )


def _whole(q: tf.Tensor, k: tf.Tensor, terms: Terms) -> Block:
    return Block(terms.mask.queries.begin, q.shape[2], 0, k.shape[2])
