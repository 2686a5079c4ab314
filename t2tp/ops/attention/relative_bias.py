"""Relative position bias: a learned number per distance of query and key."""

import math

import numpy as np
import tensorflow as tf

from t2tp.lowering.staged_sums import reduce_sum
from t2tp.ops.attention.blocks import Block


def distance_buckets(
    distances: np.ndarray, num_buckets: int, max_distance: int, both_ways: bool
) -> np.ndarray:
    """Returns the bucket of a bias table for each distance.

    Half of the buckets are for one distance each. The other half are for ranges of distances up to
    `max_distance`, and the ranges have equal lengths on a logarithmic scale (C. Raffel et al.,
    "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    arXiv:1910.10683, section 2.1).

    Args:
      distances: integers, position of the key minus position of the query.
      num_buckets: size of the table.
      max_distance: distances from this one on share the last bucket.
      both_ways: whether the upper half of the table is for distances above 0. Otherwise distances
        above 0 have the bucket of distance 0.

    Returns:
      integers in [0, num_buckets), of the shape of `distances`.
    """
    buckets = np.zeros_like(distances)
    if both_ways:
        num_buckets //= 2
        buckets = np.where(distances > 0, num_buckets, 0)
        back = np.abs(distances)
    else:
        back = np.maximum(-distances, 0)
    exact = num_buckets // 2
    # Computes in float32, like T5's code: the last bit decides at which distance a bucket ends.
    logs = np.log(np.maximum(back, 1).astype(np.float32) / np.float32(exact))
    ratio = logs / np.float32(math.log(max_distance / exact))
    far = exact + (ratio * np.float32(num_buckets - exact)).astype(distances.dtype)
    return buckets + np.where(back < exact, back, np.minimum(far, num_buckets - 1))


class Bias:
    """The bias of one processor's slice of the heads, block by block.

    Each block is computed from one number per distance and head.
    """

    def __init__(
        self,
        table: tf.Tensor,
        length: int,
        memory_length: int,
        *,
        max_distance: int,
        both_ways: bool,
        parts: int = 1,
    ) -> None:
        """Looks up the bias of every distance in `table` [heads, buckets].

        Each of the `parts` parts of the batch has its own gradient.
        """
        self._parts = parts
        self._lowest = 1 - length
        distances = np.arange(self._lowest, memory_length)
        self._num_buckets = table.shape[1]
        self._buckets = distance_buckets(distances, self._num_buckets, max_distance, both_ways)
        self._by_distance = tf.gather(tf.cast(table, tf.float32), self._buckets, axis=1)

    def block(self, block: Block) -> tf.Tensor:
        """Returns the bias of a block's scores: float32 [heads, queries, memories]."""
        heads, (queries, memories) = self._by_distance.shape[0], block[1::2]
        span = queries + memories - 1
        diagonals = tf.slice(self._by_distance, [0, self._begin(block)], [heads, span])
        # Repeating `span + 1` elements and cutting the result into rows of `span` elements shifts
        # each row by one. Row i then has the biases of query i, and no gather is needed.
        repeated = tf.tile(tf.pad(diagonals, [[0, 0], [0, 1]]), [1, queries])
        rows = tf.reshape(repeated[:, : queries * span], [heads, queries, span])
        return rows[:, :, queries - 1 :]

    def no_gradient(self) -> tf.Tensor:
        """Returns zeros, the initial `so_far` of `with_gradient`."""
        return tf.zeros([len(self._buckets), self._parts * self._by_distance.shape[0]])

    def with_gradient(self, so_far: tf.Tensor, block: Block, d_scores: tf.Tensor) -> tf.Tensor:
        """Adds the gradient of a block, from `d_scores` [batch, heads, queries, memories].

        `so_far` [distance, parts * heads] is the sum over the previous blocks.
        """
        queries, memories = block[1::2]
        span, heads = queries + memories - 1, so_far.shape[1]
        by_part = [self._parts, -1, *d_scores.shape[1:]]
        rows = reduce_sum(tf.reshape(tf.cast(d_scores, tf.float32), by_part), 1)
        rows = tf.reshape(rows, [heads, queries, memories])
        rows = tf.reshape(tf.pad(rows, [[0, 0], [0, 0], [queries - 1, 0]]), [heads, -1])
        repeated = tf.reshape(tf.pad(rows, [[0, 0], [0, queries]]), [heads, queries, span + 1])
        diagonals = tf.transpose(reduce_sum(repeated, 1)[:, :span])
        index = self._begin(block) + tf.range(span)
        return tf.tensor_scatter_nd_add(so_far, index[:, None], diagonals)

    def table_gradient(self, by_distance: tf.Tensor) -> tf.Tensor:
        """Converts the result of `with_gradient` to table gradients, [parts * heads, buckets]."""
        by_bucket = tf.math.unsorted_segment_sum(by_distance, self._buckets, self._num_buckets)
        return tf.transpose(by_bucket)

    def _begin(self, block: Block) -> int | tf.Tensor:
        """Returns the index of the smallest distance within a block."""
        return block.memory - (block.query + block.queries - 1) - self._lowest
