"""Dropout of attention weights; a weight's index in the global tensor decides if it is dropped.

Blockwise attention computes the dropout mask block by block, and recomputes it in the backward
pass. Dense attention saves it.
"""

import functools

import tensorflow as tf

from t2tp.lowering import random
from t2tp.ops.attention.blocks import Block, positions

_LEVELS = 1 << 16


class PairIndex:
    """The index of each pair of weights (an even key and the next key) in the global tensor."""

    def __init__(
        self, rows: tf.Tensor, length: int, memory_length: int, whole: Block, *, may_begin_odd: bool
    ) -> None:
        """Prepares the index; `rows` is the index of each head of each row, uint64 [batch, heads].

        `whole` are the processor's queries and keys. Blocks begin at odd keys only if
        `may_begin_odd`.
        """
        self.may_begin_odd = may_begin_odd
        self._rows = rows * tf.constant(length, tf.uint64)
        self._pairs_of_row = (memory_length + 1) // 2
        self.whole = whole

    @functools.cached_property
    def of_whole(self) -> tuple[tf.Tensor, tf.Tensor]:
        """`parts` of all queries and keys, computed once for all layers."""
        return self.parts(self.whole)

    def parts(self, block: Block) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns uint64 [batch, heads, queries, 1] and [pairs]: addends of each pair's index."""
        pairs = (block.memories + 1 + self.may_begin_odd) // 2
        queries = tf.cast(positions(block.query, block.queries), tf.uint64)
        rows = tf.expand_dims(self._rows, -1) + queries
        rows *= tf.constant(self._pairs_of_row, tf.uint64)
        return tf.expand_dims(rows, -1), tf.cast(positions(block.memory // 2, pairs), tf.uint64)


class AttentionDropout:
    """The dropout mask of a processor's slice: a function of each weight's global index."""

    def __init__(self, key: tf.Tensor, index: PairIndex, rate: float, *, xla: bool) -> None:
        """Prepares the mask; `key` is a uint64 scalar, the key of the random generator.

        `rate` is the fraction to drop, in (0, 1). It is rounded to a multiple of 2**-16. `xla` is
        whether XLA may compile the drawing of a large mask.
        """
        self._xla = xla
        self._key = key
        self._index = index
        self._kept_levels = min(max(round((1.0 - rate) * _LEVELS), 1), _LEVELS - 1)

    @property
    def scale(self) -> float:
        """The factor of the kept weights."""
        return _LEVELS / self._kept_levels

    def dropped(self, block: Block | None, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Zeroes dropped elements of [batch, heads, queries, memories], without scaling the others.

        The tensors are weights, or gradients w.r.t. weights. They are for the queries and keys of a
        block, or for all queries and keys if `block` is None.
        """
        if block is None:
            is_kept = self._kept_of_whole
        else:
            memories = tensors[0].shape[3]
            is_kept = self._is_kept(*self._index.parts(block), memories, block.memory)
        return [tf.where(is_kept, x, tf.zeros([], x.dtype)) for x in tensors]

    @functools.cached_property
    def _kept_of_whole(self) -> tf.Tensor:
        """Which weights of the whole matrix are kept."""
        return self._is_kept(*self._index.of_whole, self._index.whole.memories, 0)

    def _is_kept(
        self, rows: tf.Tensor, pairs: tf.Tensor, memories: int, begin: int | tf.Tensor
    ) -> tf.Tensor:
        """Returns which weights are kept: 32 random bits decide about a pair of weights."""
        options = (self._kept_levels,)
        is_kept = random.draw(kept_of_pairs, self._key, rows, pairs, options=options, xla=self._xla)
        if is_kept.shape[3] > memories:
            start = begin % 2 if self._index.may_begin_odd else 0
            is_kept = tf.slice(is_kept, [0, 0, 0, start], [*is_kept.shape[:3], memories])
        return is_kept


def kept_of_pairs(random_bits: tf.Tensor, kept_levels: int) -> tf.Tensor:
    """Returns which weights are kept: [..., 2 x pairs], a boolean from each half of 32 bits."""
    shape = random_bits.shape
    sixteen_bits = tf.reshape(tf.bitcast(random_bits, tf.int16), [*shape[:-1], 2 * shape[-1]])
    # The bits are compared as int16, from -2**15 to 2**15 - 1, because GPUs can compare int16.
    return sixteen_bits < tf.constant(kept_levels - _LEVELS // 2, tf.int16)
