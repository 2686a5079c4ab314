"""Blockwise attention, in memory linear in the length.

M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867); M.
Rabe and C. Staats, "Self-attention Does Not Need O(n^2) Memory" (arXiv:2112.05682). Of the scores
only the log of each query's sum of exponentials is stored, and the backward pass recomputes them:
T. Dao et al., "FlashAttention" (arXiv:2205.14135), section 3.1 and appendix B. Fully masked blocks
are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from t2tp.ops.attention.blocks import Block, collected, query_key_scores, weighted_values
from t2tp.ops.attention.mask import MASKED, Mask
from t2tp.ops.attention.score_terms import Gradients, ScoreTerms

_QUERIES = 256
_MEMORIES = 512


def padded_sizes(length: int, memory_length: int) -> tuple[int, int]:
    """Returns the number of queries and keys of a processor, padded to whole blocks."""
    queries, memories = _block_sizes(length, memory_length)
    return length + -length % queries, memory_length + -memory_length % memories


def forward(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, terms: ScoreTerms) -> tuple[tf.Tensor, ...]:
    """Computes the result and the log of each query's sum of exponentials.

    For 16 bits, also computes the rounding error of the result, which the gradient needs.

    Args:
      q: [batch, heads, length, d_kv], scaled.
      k: [batch, kv_heads, memory_length, d_kv].
      v: likewise.
      terms: the other terms of the scores.

    Returns:
      [batch, heads, length, d_kv] in the dtype of q and float32 [batch, heads, length]; for 16 bits
      also [batch, heads, length, d_kv] in the dtype of q.
    """
    length = q.shape[2]
    queries, memories = _block_sizes(length, k.shape[2])
    in_q, in_k, in_v = _cut(q, queries), _cut(k, memories), _cut(v, memories)
    first = terms.mask.queries.begin
    visible = terms.mask.queries.own(_visible_blocks(terms.mask, queries, memories))

    def row(i: tf.Tensor, ys: tf.TensorArray, logs: tf.TensorArray) -> tuple:
        def step(j: tf.Tensor, log: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, ...]:
            block = Block(first + i * queries, queries, j * memories, memories)
            scores = terms.added(tf.cast(query_key_scores(in_q[i], in_k[j]), tf.float32), block)
            weights = tf.nn.softmax(scores)
            # The max weight is that of the max score: exp(score - log).
            highest = tf.reduce_max(scores, axis=-1, keepdims=True)
            log_here = highest - tf.math.log(tf.reduce_max(weights, axis=-1, keepdims=True))
            if terms.dropout is not None:
                weights = terms.dropout.dropped(weights, block)
            y_here = weighted_values(weights, tf.cast(in_v[j], tf.float32))
            # Weights each softmax by its fraction of the joint sum of exponentials.
            largest = tf.maximum(log, log_here)
            both = largest + tf.math.log(tf.exp(log - largest) + tf.exp(log_here - largest))
            return j + 1, both, y * tf.exp(log - both) + y_here * tf.exp(log_here - both)

        start = (
            tf.gather(visible[0], i),
            tf.fill([*q.shape[:2], queries, 1], -math.inf),
            tf.zeros([*q.shape[:2], queries, v.shape[3]]),
        )
        until = tf.gather(visible[1], i)
        _, log, y = _loop(lambda j, *_: j < until, step, start)
        if terms.dropout is not None:
            y *= terms.dropout.scale
        # The sum of a query that attends to nothing consists of masked scores.
        is_blind = log < MASKED / 2
        y = tf.where(is_blind, 0.0, y)
        return i + 1, ys.write(i, y), logs.write(i, tf.where(is_blind, 0.0, log))

    arrays = (tf.TensorArray(tf.float32, in_q.shape[0]) for _ in range(2))
    _, ys, logs = _loop(lambda i, *_: i < in_q.shape[0], row, (tf.constant(0), *arrays))
    wide_y = _joined(ys.stack(), length)
    y, log = tf.cast(wide_y, q.dtype), tf.squeeze(_joined(logs.stack(), length), -1)
    if q.dtype.size >= 4:
        return y, log
    return y, log, tf.cast(wide_y - tf.cast(y, tf.float32), q.dtype)


def backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    y: tf.Tensor,
    log: tf.Tensor,
    dy: tf.Tensor,
    terms: ScoreTerms,
) -> Gradients:
    """Computes gradients w.r.t. q (scaled), k, v and the bias.

    They are computed from the results of `forward` (y before it was rounded) and the gradient
    w.r.t. its result.
    """
    length, memory_length, kv_heads = q.shape[2], k.shape[2], k.shape[1]
    queries, memories = _block_sizes(length, memory_length)
    # Equals sum_m weights * d_weights, at a lower cost.
    dtype, dy = dy.dtype, tf.cast(dy, tf.float32)
    mean = tf.reduce_sum(dy * tf.cast(y, tf.float32), -1, keepdims=True)
    if terms.dropout is not None:
        dy *= terms.dropout.scale
    in_q, in_log, in_mean, in_dy = (_cut(x, queries) for x in (q, log[..., None], mean, dy))
    in_k, in_v = _cut(k, memories), _cut(v, memories)
    first = terms.mask.queries.begin
    seeing = terms.mask.queries.own(_seeing_blocks(terms.mask, queries, memories))

    def column(
        j: tf.Tensor,
        dqs: tf.Tensor,
        d_bias: tf.Tensor,
        dks: tf.TensorArray,
        dvs: tf.TensorArray,
    ) -> tuple:
        def step(
            i: tf.Tensor, dqs: tf.Tensor, d_bias: tf.Tensor, dk: tf.Tensor, dv: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            block = Block(first + i * queries, queries, j * memories, memories)
            scores = terms.added(tf.cast(query_key_scores(in_q[i], in_k[j]), tf.float32), block)
            weights = tf.exp(scores - in_log[i])
            d_weights = query_key_scores(in_dy[i], tf.cast(in_v[j], tf.float32))
            used = weights
            if terms.dropout is not None:
                used = terms.dropout.dropped(weights, block)
                d_weights = terms.dropout.dropped(d_weights, block)
            d_scores = weights * (d_weights - in_mean[i])
            if terms.bias is not None:
                d_bias = terms.bias.with_gradient(d_bias, block, d_scores)
            d_scores = tf.cast(d_scores, q.dtype)
            d_values = collected(tf.cast(used, v.dtype), tf.cast(in_dy[i], dtype), kv_heads)
            dv += tf.cast(d_values, tf.float32)
            dk += tf.cast(collected(d_scores, in_q[i], kv_heads), tf.float32)
            dq = tf.cast(weighted_values(d_scores, in_k[j]), tf.float32)
            return i + 1, tf.tensor_scatter_nd_add(dqs, [[i]], dq[None]), d_bias, dk, dv

        start = (
            tf.gather(seeing[0], j),
            dqs,
            d_bias,
            tf.zeros(in_k.shape[1:]),
            tf.zeros(in_v.shape[1:]),
        )
        until = tf.gather(seeing[1], j)
        _, dqs, d_bias, dk, dv = _loop(lambda i, *_: i < until, step, start)
        return (
            j + 1,
            dqs,
            d_bias,
            dks.write(j, tf.cast(dk, k.dtype)),
            dvs.write(j, tf.cast(dv, v.dtype)),
        )

    no_bias = tf.zeros([]) if terms.bias is None else terms.bias.no_gradient()
    arrays = (tf.TensorArray(x.dtype, in_k.shape[0]) for x in (k, v))
    start = (tf.constant(0), tf.zeros(in_q.shape), no_bias, *arrays)
    _, dqs, d_bias, dks, dvs = _loop(lambda j, *_: j < in_k.shape[0], column, start)
    return Gradients(
        tf.cast(_joined(dqs, length), q.dtype),
        _joined(dks.stack(), memory_length),
        _joined(dvs.stack(), memory_length),
        None if terms.bias is None else d_bias,
    )


def _loop(condition: Callable, body: Callable, start: Sequence) -> tuple:
    # One iteration at a time: parallel ones would each hold a block of scores.
    return tf.while_loop(condition, body, start, parallel_iterations=1)


def _block_sizes(length: int, memory_length: int) -> tuple[int, int]:
    """Returns the number of queries and keys of a block: even, as dropout needs."""
    queries = min(_QUERIES, length + length % 2)
    return queries, min(_MEMORIES, memory_length + memory_length % 2)


def _cut(x: tf.Tensor, size: int) -> tf.Tensor:
    """Splits [batch, heads, length, d] -> [block, batch, heads, size, d], zero-padded."""
    x = tf.pad(x, [[0, 0], [0, 0], [0, -x.shape[2] % size], [0, 0]])
    batch, heads, length, d = x.shape
    return tf.transpose(tf.reshape(x, [batch, heads, length // size, size, d]), [2, 0, 1, 3, 4])


def _joined(blocks: tf.Tensor, length: int) -> tf.Tensor:
    """Merges [block, batch, heads, size, d] -> [batch, heads, length, d]."""
    count, batch, heads, size, d = blocks.shape
    x = tf.reshape(tf.transpose(blocks, [1, 2, 0, 3, 4]), [batch, heads, count * size, d])
    return x[:, :, :length]


def _visible_blocks(mask: Mask, queries: int, memories: int) -> np.ndarray:
    """Returns, for each block of queries, the range of memory blocks that it attends to.

    Returns:
      begin and end, int32 [slice of the length, 2, block of queries].
    """
    size = mask.queries.size
    ranges = [
        [mask.visible_range(first + i, min(queries, size - i)) for i in range(0, size, queries)]
        for first in mask.queries.offsets
    ]
    begin, end = np.moveaxis(np.array(ranges, np.int32), -1, 0)
    return np.stack([begin // memories, -(-end // memories)], axis=1)


def _seeing_blocks(mask: Mask, queries: int, memories: int) -> np.ndarray:
    """Returns, for each memory block, the range of query blocks that attend to it.

    Returns:
      begin and end, both 0 if none does, int32 [slice of the length, 2, block of the memory].
    """
    count = -(-mask.memory_length // memories)
    result = np.zeros([len(mask.queries.offsets), 2, count], np.int32)
    for place, (begin, end) in enumerate(_visible_blocks(mask, queries, memories)):
        for j in range(count):
            blocks = np.flatnonzero((begin <= j) & (j < end))
            if len(blocks):
                result[place, :, j] = blocks[0], blocks[-1] + 1
    return result
