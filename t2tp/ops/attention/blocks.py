"""Blocks of the score matrix of attention, and matmuls within them."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp.lowering.slice_shapes import reshaped


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
    """Consecutive queries: a slice that a processor has, or a part of one.

    Attributes:
      size: number of queries.
      offsets: position of the first query of each slice.
      begin: position of this slice's first query, an integer or an int32 scalar.
    """

    def __init__(self, size: int, slices: int = 1, place: int | tf.Tensor = 0) -> None:
        """Selects a slice.

        Args:
          size: queries per slice.
          slices: number of slices.
          place: index of the slice, an integer or an int32 scalar.
        """
        self.size = size
        self.offsets = range(0, slices * size, size)
        self.begin = place * size


class Keys(NamedTuple):
    """Consecutive keys that a processor holds: all of the memory, or a part of it.

    Attributes:
      size: number of keys.
      begin: position of the first key, an integer or an int32 scalar.
      places: index in memory of each block of keys, listed by position. None: blocks are stored in
        order.
    """

    size: int
    begin: int | tf.Tensor = 0
    places: Sequence[int] | None = None

    def place(self, block: tf.Tensor) -> tf.Tensor:
        """Returns the index in memory of a block, int32 scalars."""
        return block if self.places is None else tf.gather(tf.constant(self.places), block)


def positions(first: int | tf.Tensor, count: int) -> tf.Tensor:
    """Returns consecutive positions, int32 [count]."""
    if isinstance(first, int):
        return tf.range(first, first + count)
    return first + tf.range(count)


def query_key_scores(q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """Computes the scores of each query with each key of its head.

    Args:
      q: [batch, heads, queries, d].
      k: [batch, kv_heads, memories, d]; query head h has kv head h // (heads / kv_heads).

    Returns:
      [batch, heads, queries, memories].
    """
    result = tf.matmul(_grouped(q, k), k, transpose_b=True)
    return reshaped(result, [*q.shape[:3], k.shape[2]])


def weighted_values(weights: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """Computes the weighted sum of the values.

    Args:
      weights: [batch, heads, queries, memories].
      v: [batch, kv_heads, memories, d].

    Returns:
      [batch, heads, queries, d].
    """
    result = tf.matmul(_grouped(weights, v), v)
    return reshaped(result, [*weights.shape[:3], v.shape[3]])


def collected(weights: tf.Tensor, y: tf.Tensor, kv_heads: int) -> tf.Tensor:
    """Sums over the queries, and over the heads that share a kv head.

    Args:
      weights: [batch, heads, queries, memories].
      y: [batch, heads, queries, d].
      kv_heads: number of kv heads.

    Returns:
      [batch, kv_heads, memories, d].
    """
    shape = [weights.shape[0], kv_heads, -1]
    grouped = [reshaped(x, [*shape, x.shape[3]]) for x in (weights, y)]
    return tf.matmul(*grouped, transpose_a=True)


def _grouped(x: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
    """Groups [batch, heads, queries, d] -> [batch, kv_heads, heads / kv_heads * queries, d]."""
    return reshaped(x, [*memory.shape[:2], -1, x.shape[3]])
