"""Dropout of attention weights; the mask is generated block by block and never stored."""

from __future__ import annotations

import tensorflow as tf

from t2tp.lowering import random
from t2tp.ops.attention.blocks import Block

_LEVELS = 1 << 16


class AttentionDropout:
    """The dropout mask of a processor's slice: a function of each weight's global index."""

    def __init__(
        self,
        key: tf.Tensor,
        rows: tf.Tensor,
        length: int,
        memory_length: int,
        rate: float,
        *,
        may_begin_odd: bool = False,
    ) -> None:
        """Prepares the mask.

        Args:
          key: of the random generator, a uint64 scalar.
          rows: uint64 [batch, heads], the index of each head of each example in the global tensor.
          length: number of queries.
          memory_length: number of keys.
          rate: the fraction to drop, in (0, 1); rounded to a multiple of 2**-16.
          may_begin_odd: whether blocks may begin at keys of odd positions.
        """
        self._key = key
        self._rows = rows
        self._length = length
        self._memory_length = memory_length
        self._may_begin_odd = may_begin_odd
        self._kept_levels = min(max(round((1.0 - rate) * _LEVELS), 1), _LEVELS - 1)

    @property
    def scale(self) -> float:
        """The factor of the kept weights."""
        return _LEVELS / self._kept_levels

    def dropped(self, weights: tf.Tensor, block: Block) -> tf.Tensor:
        """Zeroes dropped weights [batch, heads, queries, memories]; does not scale the others."""
        return tf.where(self._is_kept(block), weights, tf.zeros([], weights.dtype))

    def _is_kept(self, block: Block) -> tf.Tensor:
        """Returns which weights are kept.

        32 random bits decide two weights: those of an even position and the next one.
        """
        pairs = (block.memories + 1 + self._may_begin_odd) // 2
        in_memory = tf.cast(block.memory // 2 + tf.range(pairs), tf.uint64)
        queries = tf.cast(block.query + tf.range(block.queries), tf.uint64)
        rows = self._rows[:, :, None] * tf.constant(self._length, tf.uint64) + queries
        stride = tf.constant((self._memory_length + 1) // 2, tf.uint64)
        index = rows[..., None] * stride + in_memory
        halves = tf.bitcast(random.bits(self._key, index), tf.int16)
        sixteen_bits = tf.reshape(halves, [*index.shape[:3], 2 * pairs])
        begin = [0, 0, 0, block.memory % 2 if self._may_begin_odd else 0]
        sixteen_bits = tf.slice(sixteen_bits, begin, [*index.shape[:3], block.memories])
        # An int16 in [-2**15, 2**15), so that GPUs can compare it.
        return sixteen_bits < tf.constant(self._kept_levels - _LEVELS // 2, tf.int16)
