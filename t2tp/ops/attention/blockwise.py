"""Blockwise attention, whose use of memory is linear in the length.

The softmax is computed online, one block of keys at a time (M. Milakov and N. Gimelshein, "Online
normalizer calculation for softmax", arXiv:1805.02867; M. Rabe and C. Staats, "Self-attention Does
Not Need O(n^2) Memory", arXiv:2112.05682). The state of a query consists of `log`, the log of the
sum of exponentials over the keys seen so far, and `y`, the weighted mean of their values. The next
block of keys changes this state to

    log' = logaddexp(log, log_block)
    y' = y * exp(log - log') + y_block * exp(log_block - log')

The forward pass saves `log`; the backward pass recomputes the scores (T. Dao et al.,
"FlashAttention", arXiv:2205.14135, section 3.1 and appendix B). Fully masked blocks are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2tp.ops.attention.blocks import Block, collected, query_key_scores, weighted_values
from t2tp.ops.attention.mask import MASKED, Mask
from t2tp.ops.attention.score_terms import AllGradients, Gradients, ScoreTerms, through_cap
from t2tp.processes.cluster import threads_of_an_operation

# Block sizes, measured on CPUs. With many rows (batch x heads) a block of 256 keys fits the caches,
# and blocks of 512 take up to 1.4 times longer. With few rows each operation is too short for
# several threads, so fewer and larger blocks save up to a fifth of the time.
_QUERIES = 256
_KEYS = 256
_KEYS_OF_FEW_ROWS = 512
_FEW_ROWS = 16


def query_block_of(length: int, block_size: int | None) -> int:
    """Returns the number of queries of a block."""
    return min(block_size or _QUERIES, length + length % 2)


def key_block_of(memory_length: int, rows: int, block_size: int | None) -> int:
    """Returns the number of keys of a block; it is even, because dropout needs pairs of keys.

    `rows` is the batch size times the number of the queries' heads.
    """
    size = _KEYS_OF_FEW_ROWS if rows < _FEW_ROWS and threads_of_an_operation() > 1 else _KEYS
    return min(block_size or size, memory_length + memory_length % 2)


def cut(x: tf.Tensor, size: int) -> tf.Tensor:
    """Splits [batch, heads, length, d] -> [block, batch, heads, size, d], zero-padded."""
    x = tf.pad(x, [[0, 0], [0, 0], [0, -x.shape[2] % size], [0, 0]])
    batch, heads, length, d = x.shape
    return tf.transpose(tf.reshape(x, [batch, heads, length // size, size, d]), [2, 0, 1, 3, 4])


def joined(blocks: tf.Tensor, length: int) -> tf.Tensor:
    """Merges [block, batch, heads, size, d] -> [batch, heads, length, d]."""
    count, batch, heads, size, d = blocks.shape
    x = tf.reshape(tf.transpose(blocks, [1, 2, 0, 3, 4]), [batch, heads, count * size, d])
    return x[:, :, :length]


class Attended(NamedTuple):
    """The online softmax of query blocks over the keys seen so far.

    Attributes:
      log: the log of each query's sum of exponentials, [block, batch, heads, size, 1].
      y: the weighted mean of the values, float32 [block, batch, heads, size, d_v].
    """

    log: tf.Tensor
    y: tf.Tensor

    @classmethod
    def nothing(cls, q: tf.Tensor, d: int, size: int) -> Attended:
        """Returns the state before the first key, in blocks of `size` queries.

        `d` is the size of a value.
        """
        batch, heads, length, _ = q.shape
        shape = [-(-length // size), batch, heads, size]
        return cls(tf.fill([*shape, 1], -math.inf), tf.zeros([*shape, d]))


def forward(
    qs: Sequence[tf.Tensor], memory: tuple[tf.Tensor, tf.Tensor], terms: Sequence[ScoreTerms]
) -> list[tuple[tf.Tensor, ...]]:
    """Computes the result and the log of each query's sum of exponentials.

    With 16-bit floats it also returns the rounding error of the result, which the gradient needs.

    Args:
      qs: the parts of the queries, scaled, [batch, heads, length, d_kv]. In head-tail order there
        are two parts, an early and a late one, otherwise one.
      memory: keys and values in blocks (see `cut`), [block, batch, kv_heads, size, d_kv or d_v].
      terms: the score terms of each part.

    Returns:
      for each part the result [batch, heads, length, d_v] in the dtype of q; the log, float32
      [batch, heads, length]; and, with 16-bit floats, the rounding error, in the shape and dtype of
      the result.
    """
    return [
        results(attended(q, *memory, of_part), q, of_part)
        for q, of_part in zip(qs, terms, strict=True)
    ]


def attended(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, terms: ScoreTerms, so_far: Attended | None = None
) -> Attended:
    """Attends to more keys.

    Args:
      q: [batch, heads, length, d_kv], scaled.
      k: the keys that `terms.mask` describes, in blocks [block, batch, kv_heads, size, d_kv].
      v: values, like `k`, of size d_v.
      terms: the other terms of the scores.
      so_far: the state after earlier keys. None: no keys yet.
    """
    queries, memories = terms.query_block, k.shape[3]
    in_q = cut(q, queries)
    first, first_key = terms.mask.queries.begin, terms.mask.keys.begin
    begin, end = _visible_blocks(terms.mask, queries, memories)

    def row(i: tf.Tensor, ys: tf.TensorArray, logs: tf.TensorArray) -> tuple:
        def step(j: tf.Tensor, log: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, ...]:
            block = Block(first + i * queries, queries, first_key + j * memories, memories)
            at = terms.mask.keys.place(j)
            scores = terms.added(tf.cast(query_key_scores(in_q[i], k[at]), tf.float32), block)
            weights = tf.nn.softmax(scores)
            # The largest weight is exp(highest - log), so log follows from it. That saves a second
            # pass over the scores.
            highest = tf.reduce_max(scores, axis=-1, keepdims=True)
            log_here = highest - tf.math.log(tf.reduce_max(weights, axis=-1, keepdims=True))
            if terms.dropout is not None:
                (weights,) = terms.dropout.dropped(block, weights)
            y_here = weighted_values(weights, tf.cast(v[at], tf.float32))
            # Weights each softmax by its fraction of the joint sum of exponentials.
            largest = tf.maximum(log, log_here)
            both = largest + tf.math.log(tf.exp(log - largest) + tf.exp(log_here - largest))
            return j + 1, both, y * tf.exp(log - both) + y_here * tf.exp(log_here - both)

        if so_far is None:
            log = tf.fill([*q.shape[:2], queries, 1], -math.inf)
            y = tf.zeros([*q.shape[:2], queries, v.shape[4]])
        else:
            log, y = so_far.log[i], so_far.y[i]
        _, log, y = _loop(lambda j, *_: j < end[i], step, (begin[i], log, y))
        return i + 1, ys.write(i, y), logs.write(i, log)

    arrays = (tf.TensorArray(tf.float32, in_q.shape[0]) for _ in range(2))
    _, ys, logs = _loop(lambda i, *_: i < in_q.shape[0], row, (tf.constant(0), *arrays))
    return Attended(logs.stack(), ys.stack())


def results(state: Attended, q: tf.Tensor, terms: ScoreTerms) -> tuple[tf.Tensor, ...]:
    """Converts the final state of the online softmax to the results of `forward`."""
    log, wide_y = (joined(x, q.shape[2]) for x in state)
    if terms.dropout is not None:
        wide_y *= terms.dropout.scale
    # A query that attends to nothing has only masked scores, so its log is about MASKED.
    is_blind = log < MASKED / 2
    if terms.sinks is not None:
        sinks = terms.sinks[:, None, None]
        largest = tf.maximum(log, sinks)
        both = largest + tf.math.log(tf.exp(log - largest) + tf.exp(sinks - largest))
        wide_y, log = wide_y * tf.exp(log - both), both
    wide_y = tf.where(is_blind, 0.0, wide_y)
    log = tf.squeeze(tf.where(is_blind, 0.0, log), -1)
    y = tf.cast(wide_y, q.dtype)
    if q.dtype.size >= 4:
        return y, log
    return y, log, tf.cast(wide_y - tf.cast(y, tf.float32), q.dtype)


class BackwardQueries(NamedTuple):
    """The queries' tensors for the backward pass, in blocks [block, batch, heads, size, ...].

    Attributes:
      q: scaled queries [..., d_kv].
      log: log of each query's sum of exponentials [..., 1].
      mean: weighted mean of the gradients w.r.t. each query's weights [..., 1].
      dy: gradient w.r.t. the result, float32 [..., d_v].
      length: number of queries.
      dtype: dtype of the gradient w.r.t. the result.
    """

    q: tf.Tensor
    log: tf.Tensor
    mean: tf.Tensor
    dy: tf.Tensor
    length: int
    dtype: tf.DType

    @classmethod
    def of(
        cls, q: tf.Tensor, mean: tf.Tensor, log: tf.Tensor, dy: tf.Tensor, terms: ScoreTerms
    ) -> BackwardQueries:
        """Prepares all tensors that do not depend on the keys; arguments as for `backward`."""
        size, dtype, dy = terms.query_block, dy.dtype, tf.cast(dy, tf.float32)
        if terms.dropout is not None:
            dy *= terms.dropout.scale
        in_q, in_dy = cut(q, size), cut(dy, size)
        in_log, in_mean = (cut(x[..., None], size) for x in (log, mean))
        return cls(in_q, in_log, in_mean, in_dy, q.shape[2], dtype)


def mean_weight_gradient(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the gradients w.r.t. each query's weights, weighted by the weights.

    The mean equals the dot product of the unrounded result `y` [batch, heads, length, d_v] with its
    gradient.

    Returns:
      float32 [batch, heads, length].
    """
    return tf.reduce_sum(tf.cast(dy, tf.float32) * tf.cast(y, tf.float32), -1)


def backward(
    by_query: Sequence[Sequence[tf.Tensor]],
    memory: tuple[tf.Tensor, tf.Tensor],
    terms: Sequence[ScoreTerms],
) -> AllGradients:
    """Computes the gradients w.r.t. each part of the queries, and w.r.t. keys and values.

    Args:
      by_query: one tuple per part: `q` (scaled), its `mean_weight_gradient`, `log` from `forward`,
        and `dy`, the gradient w.r.t. the result.
      memory: as for `forward`.
      terms: the score terms of each part.

    Returns:
      the gradients w.r.t. q and the bias, for each part; and the gradients w.r.t. k and v, float32
      in blocks.
    """
    ours, start = start_backward(by_query, terms)
    sums, d_memory = with_gradients(start, ours, *memory, terms)
    return query_gradients(sums, ours), d_memory


def start_backward(
    by_query: Sequence[Sequence[tf.Tensor]], terms: Sequence[ScoreTerms]
) -> tuple[list[BackwardQueries], list[BlockSums]]:
    """Returns each part's queries for `with_gradients`, and zero sums."""
    ours, sums = [], []
    for (q, mean, log, dy), of_part in zip(by_query, terms, strict=True):
        ours.append(BackwardQueries.of(q, mean, log, dy, of_part))
        bias = () if of_part.bias is None else (of_part.bias.no_gradient(),)
        sums.append(BlockSums(tf.zeros(ours[-1].q.shape), bias))
    return ours, sums


def query_gradients(sums: Sequence[BlockSums], ours: Sequence[BackwardQueries]) -> list[Gradients]:
    """Returns the gradients of each part of the queries, once the sums are over all keys."""
    return [
        Gradients(tf.cast(joined(each.q, part.length), part.q.dtype), *each.bias)
        for each, part in zip(sums, ours, strict=True)
    ]


class BlockSums(NamedTuple):
    """Gradients w.r.t. the queries, summed over the keys seen so far.

    Attributes:
      q: gradient w.r.t. the queries, in blocks.
      bias: gradient w.r.t. the bias of each distance; empty if there is no bias.
    """

    q: tf.Tensor
    bias: tuple[tf.Tensor, ...]


def with_gradients(
    so_far: Sequence[BlockSums],
    ours: Sequence[BackwardQueries],
    k: tf.Tensor,
    v: tf.Tensor,
    terms: Sequence[ScoreTerms],
) -> tuple[list[BlockSums], tuple[tf.Tensor, tf.Tensor]]:
    """Adds the gradients from some keys.

    Args:
      so_far: sums over earlier keys, one for each part of the queries.
      ours: the parts of the queries.
      k: the keys that the masks in `terms` describe, [block, batch, kv_heads, size, d_kv].
      v: values, like `k`, of size d_v.
      terms: the score terms of each part.

    Returns:
      the sums with these keys added; and the gradients w.r.t. k and v, float32 in the same blocks.
    """
    memories = k.shape[3]
    ranges = [
        _seeing_blocks(of_part.mask, part.q.shape[3], memories)
        for part, of_part in zip(ours, terms, strict=True)
    ]

    def column(
        j: tf.Tensor, sums: list[BlockSums], dks: tf.TensorArray, dvs: tf.TensorArray
    ) -> tuple:
        at = terms[0].mask.keys.place(j)
        here = k[at], v[at]
        d_kv = tf.zeros(here[0].shape), tf.zeros(here[1].shape)
        summed = []
        for part, of_part, (begin, end), so_far in zip(ours, terms, ranges, sums, strict=True):
            bounds = begin[j], end[j]
            so_far, d_kv = _add_block_gradients(part, of_part, j, *here, bounds, so_far, d_kv)
            summed.append(so_far)
        return j + 1, summed, dks.write(at, d_kv[0]), dvs.write(at, d_kv[1])

    arrays = (tf.TensorArray(tf.float32, k.shape[0]) for _ in range(2))
    _, sums, dks, dvs = _loop(
        lambda j, *_: j < k.shape[0], column, (tf.constant(0), list(so_far), *arrays)
    )
    return sums, (dks.stack(), dvs.stack())


def _add_block_gradients(
    ours: BackwardQueries,
    terms: ScoreTerms,
    index: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    bounds: tuple[tf.Tensor, tf.Tensor],
    sums: BlockSums,
    d_kv: tuple[tf.Tensor, tf.Tensor],
) -> tuple[BlockSums, tuple[tf.Tensor, tf.Tensor]]:
    """Adds the gradients through one block of keys, for a part of the queries.

    `k` and `v`, [batch, kv_heads, size, d], are block number `index`. `bounds` are the first block
    of queries to compute, and the block after the last one. `sums` and `d_kv` are the gradients so
    far.
    """
    kv_heads, memories, queries = k.shape[1], k.shape[2], ours.q.shape[3]
    memory = terms.mask.keys.begin + index * memories

    def step(i: tf.Tensor, sums: BlockSums, d_kv: tuple[tf.Tensor, tf.Tensor]) -> tuple:
        block = Block(terms.mask.queries.begin + i * queries, queries, memory, memories)
        products = tf.cast(query_key_scores(ours.q[i], k), tf.float32)
        weights = tf.exp(terms.added(products, block) - ours.log[i])
        d_weights = query_key_scores(ours.dy[i], tf.cast(v, tf.float32))
        used = weights
        if terms.dropout is not None:
            used, d_weights = terms.dropout.dropped(block, weights, d_weights)
        d_scores = weights * (d_weights - ours.mean[i])
        d_bias = sums.bias
        if terms.bias is not None:
            d_bias = (terms.bias.with_gradient(d_bias[0], block, d_scores),)
        if terms.soft_cap:
            d_scores = through_cap(d_scores, products, terms.soft_cap)
        d_scores = tf.cast(d_scores, k.dtype)
        dk = collected(d_scores, ours.q[i], kv_heads)
        dv = collected(tf.cast(used, v.dtype), tf.cast(ours.dy[i], ours.dtype), kv_heads)
        dk, dv = (so_far + tf.cast(x, tf.float32) for so_far, x in zip(d_kv, (dk, dv), strict=True))
        dq = tf.cast(weighted_values(d_scores, k), tf.float32)
        sums = BlockSums(tf.tensor_scatter_nd_add(sums.q, [[i]], dq[None]), d_bias)
        return i + 1, sums, (dk, dv)

    begin, end = bounds
    _, sums, d_kv = _loop(lambda i, *_: i < end, step, (begin, sums, d_kv))
    return sums, d_kv


def _loop(condition: Callable, body: Callable, start: Sequence) -> tuple:
    # One iteration at a time: parallel iterations would each hold a block of scores.
    return tf.while_loop(condition, body, start, parallel_iterations=1)


def _visible_blocks(mask: Mask, queries: int, memories: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the begin and end of the key blocks that each query block attends to, int32.

    An empty range has end <= begin.
    """
    first = np.arange(0, mask.queries.size, queries)
    count = np.minimum(queries, mask.queries.size - first)
    begin, end = mask.visible_range(first, count)
    return begin // memories, -(-end // memories)


def _seeing_blocks(mask: Mask, queries: int, memories: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the begin and end of the query blocks that attend to each key block, int32.

    An empty range is (0, 0).
    """
    begin, end = _visible_blocks(mask, queries, memories)
    blocks = tf.range(-(-mask.keys.size // memories))[:, None]
    sees = tf.cast(tf.logical_and(begin <= blocks, blocks < end), tf.int32)
    count = sees.shape[1]
    first = tf.argmax(sees, 1, tf.int32)
    until = count - tf.argmax(sees[:, ::-1], 1, tf.int32)
    return first, tf.where(tf.reduce_any(sees > 0, 1), until, 0)
