"""Blocks of the score matrix of attention, and matmuls within them."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp.lowering.matmul import SMALL_PRODUCT
from t2tp.lowering.slice_shapes import reshaped
from t2tp.mesh.collectives import tree_sum

# With `exact_sums` keys are multiplied in blocks of this size. A sum over 64 keys is short enough
# that matmul kernels add it in the same order for any number of queries.
_EXACT_KEYS = 64
# TensorFlow multiplies small matrices, and matrices of a single row, with other kernels, which may
# add in another order. To avoid these kernels, rows of zeros are appended to a matrix until it has
# `_MORE_ROWS` more rows than a small product can have.
_MORE_ROWS = 8


class Block(NamedTuple):
    """A range of queries and a range of keys.

    Attributes:
      query: position of the first query, an integer or an int32 scalar.
      queries: number of queries.
      memory: position of the first key.
      memories: number of keys.
    """

    query: int | tf.Tensor
    queries: int
    memory: int | tf.Tensor
    memories: int


class Queries:
    """Consecutive queries: a processor's slice, or a part of it.

    Attributes:
      size: number of queries.
      offsets: position of the first query of each slice.
      begin: position of this slice's first query, an integer or an int32 scalar.
    """

    def __init__(self, size: int, slices: int = 1, place: int | tf.Tensor = 0) -> None:
        """Selects slice number `place` (an integer or int32 scalar) of `slices` equal slices."""
        self.size = size
        self.offsets = range(0, slices * size, size)
        self.begin = place * size


class KeyRange(NamedTuple):
    """Consecutive keys that a processor has: all keys of the sequence, or a part of them.

    Attributes:
      size: number of keys.
      begin: position of the first key, an integer or an int32 scalar.
      places: `places[i]` is the index at which block number i of the keys is stored. None: each
        block is stored at the index that is its number.
    """

    size: int
    begin: int | tf.Tensor = 0
    places: Sequence[int] | None = None

    def place(self, block: tf.Tensor) -> tf.Tensor:
        """Returns the index at which block number `block` is stored, an int32 scalar."""
        return block if self.places is None else tf.gather(tf.constant(self.places), block)


def positions(first: int | tf.Tensor, count: int) -> tf.Tensor:
    """Returns consecutive positions, int32 [count]."""
    if isinstance(first, int):
        return tf.range(first, first + count)
    return first + tf.range(count)


def query_key_scores(
    q: tf.Tensor, k: tf.Tensor, *, exact: bool = False, all_keys: bool = False
) -> tf.Tensor:
    """Computes the scores of each query with each key of its head.

    Args:
      q: [batch, heads, queries, d].
      k: [batch, kv_heads, memories, d]; query head h has kv head h // (heads / kv_heads).
      exact: whether a score has the same bits for any number of queries and keys.
      all_keys: whether `k` has all keys, so that `exact` need not hold for other numbers of keys.

    Returns:
      [batch, heads, queries, memories].
    """
    grouped = _grouped(q, k)
    if exact and not all_keys:
        rows = tf.expand_dims(_with_enough_rows(grouped, q.shape[3] * _EXACT_KEYS), 2)
        by_block = tf.matmul(rows, in_key_blocks(k, 2), transpose_b=True)
        result = tf.transpose(by_block, [0, 1, 3, 2, 4])
        result = tf.reshape(result, [*result.shape[:3], -1])
        result = result[:, :, : grouped.shape[2], : k.shape[2]]
    else:
        result = _by_row(grouped, k, exact=exact, transpose_b=True)
    return reshaped(result, [*q.shape[:3], k.shape[2]])


def weighted_values(
    weights: tf.Tensor, v: tf.Tensor, *, exact: bool = False, all_keys: bool = False
) -> tf.Tensor:
    """Computes the weighted sum of the values.

    Args:
      weights: [batch, heads, queries, memories].
      v: [batch, kv_heads, memories, d].
      exact: whether a sum has the same bits for any number of queries, and for any number of keys
        of weight 0 at the end.
      all_keys: whether `v` has all values, so that `exact` need not hold for other numbers of keys.

    Returns:
      [batch, heads, queries, d].
    """
    grouped = _grouped(weights, v)
    if exact and not all_keys:
        by_block = in_key_blocks(_with_enough_rows(grouped, v.shape[3] * _EXACT_KEYS), 3)
        by_block = tf.matmul(tf.transpose(by_block, [0, 1, 3, 2, 4]), in_key_blocks(v, 2))
        result = added_in_turn(by_block, 2)[:, :, : grouped.shape[2]]
    else:
        result = _by_row(grouped, v, exact=exact)
    return reshaped(result, [*weights.shape[:3], v.shape[3]])


def in_key_blocks(x: tf.Tensor, axis: int, value: float = 0.0) -> tf.Tensor:
    """Splits dimension `axis`, the keys: [..., memories, ...] -> [..., blocks, keys, ...].

    The last block is padded with `value`.
    """
    pads = [[0, -x.shape[axis] % _EXACT_KEYS if i == axis else 0] for i in range(x.shape.rank)]
    x = tf.pad(x, pads, constant_values=value)
    return tf.reshape(x, [*x.shape[:axis], -1, _EXACT_KEYS, *x.shape[axis + 1 :]])


def added_in_turn(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Adds the elements of a dimension one by one, so zeros at its end never change the result."""
    return functools.reduce(tf.add, tf.unstack(x, axis=axis))


def _with_enough_rows(x: tf.Tensor, size: int) -> tf.Tensor:
    """Appends zero rows until the product with a matrix of `size` elements is no small product."""
    rows = SMALL_PRODUCT // size + _MORE_ROWS
    return tf.pad(x, [[0, 0], [0, 0], [0, max(0, rows - x.shape[2])], [0, 0]])


def _by_row(x: tf.Tensor, y: tf.Tensor, *, exact: bool, transpose_b: bool = False) -> tf.Tensor:
    """Multiplies matrices; with `exact` a row has the same bits for any number of rows."""
    if not exact:
        return tf.matmul(x, y, transpose_b=transpose_b)
    rows = _with_enough_rows(x, y.shape[2] * y.shape[3])
    return tf.matmul(rows, y, transpose_b=transpose_b)[:, :, : x.shape[2]]


def collected(weights: tf.Tensor, y: tf.Tensor, kv_heads: int, parts: int = 1) -> tf.Tensor:
    """Computes weighted sums over the queries and over the heads that share a kv head.

    Args:
      weights: [batch, heads, queries, memories].
      y: [batch, heads, queries, d].
      kv_heads: number of kv heads.
      parts: number of parts of the queries. Each part is summed, then the sums are added as a tree.

    Returns:
      [batch, kv_heads, memories, d].
    """
    if parts == 1:
        shape = [weights.shape[0], kv_heads, -1]
        grouped = [reshaped(x, [*shape, x.shape[3]]) for x in (weights, y)]
        return tf.matmul(*grouped, transpose_a=True)
    cut = zip(tf.split(weights, parts, 2), tf.split(y, parts, 2), strict=True)
    return tree_sum([collected(w, y, kv_heads) for w, y in cut])


def _grouped(x: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
    """Groups [batch, heads, queries, d] -> [batch, kv_heads, heads / kv_heads * queries, d]."""
    return reshaped(x, [*memory.shape[:2], -1, x.shape[3]])
