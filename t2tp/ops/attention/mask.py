"""Attention masks: which keys a query attends to."""

from __future__ import annotations

import functools
from dataclasses import KW_ONLY, dataclass

import numpy as np
import tensorflow as tf

from t2tp.ops.attention.blocks import Block, KeyRange, Queries, positions

# Masking adds this number to scores, which are then far lower than all other scores.
MASKED = -1e9


@dataclass(frozen=True, eq=False)
class Mask:
    """The keys that each query of one processor's slice attends to.

    Attributes:
      causal: whether queries attend to no later positions.
      window: see `attention`; None: no window.
      segments: segments of these queries, [batch, queries], or None.
      memory_segments: segments of these keys, [batch, keys], or None.
      may_be_blind: whether segments may mask all keys of a query. The result of such a query is 0.
      max_segments: the largest number of segments in a row; 0: unknown.
    """

    queries: Queries
    keys: KeyRange
    _: KW_ONLY
    causal: bool = False
    window: int | None = None
    segments: tf.Tensor | None = None
    memory_segments: tf.Tensor | None = None
    may_be_blind: bool = False
    max_segments: int = 0

    def visible_range(self, first: np.ndarray, count: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the range of keys that each range of queries attends to.

        `first` and `count`, both [n], are the first query and the size of each range of queries.
        The result is the index of the first key and the index after the last key, int32 [n]. If
        there are no keys, the second index is not above the first, and may be negative.
        """
        query = self.queries.begin + tf.constant(first, tf.int32)
        begin, end = tf.zeros_like(query), tf.fill(query.shape, self.keys.size)
        if self.window is not None:
            begin = tf.maximum(begin, query - self.window + 1 - self.keys.begin)
            end = tf.minimum(end, query + count + self.window - 1 - self.keys.begin)
        if self.causal:
            end = tf.minimum(end, query + count - self.keys.begin)
        return begin, end

    @functools.cached_property
    def packed(self) -> Packed:
        """The runs of equal segments, computed once for all layers."""
        return Packed(self.segments, self.max_segments)

    @property
    def whole(self) -> Block:
        """The block of all queries and keys."""
        return Block(self.queries.begin, self.queries.size, self.keys.begin, self.keys.size)

    @functools.cached_property
    def of_whole(self) -> tf.Tensor | None:
        """The mask of the block `whole`, computed once for all layers."""
        return self.block(self.whole)

    def block(self, block: Block) -> tf.Tensor | None:
        """Returns the term to add to a block's scores: 0 or `MASKED`; None if nothing is masked.

        The term is float32 [batch or 1, 1, queries, memories]. It masks keys that pad the last
        block. Queries that pad a block may have any mask, because their results are never read.
        """
        conditions = self._conditions_on_places(block)
        if self.segments is not None:
            ours = _part(self.segments, block.query - self.queries.begin, block.queries)
            theirs = _part(self.memory_segments, block.memory - self.keys.begin, block.memories)
            conditions.append(tf.equal(tf.expand_dims(ours, 2), tf.expand_dims(theirs, 1)))
        if not conditions:
            return None
        is_seen = functools.reduce(tf.logical_and, conditions)
        return tf.expand_dims(tf.where(is_seen, 0.0, MASKED), 1)

    def _conditions_on_places(self, block: Block) -> list[tf.Tensor]:
        """Returns booleans [1, queries or 1, memories]."""
        here = tf.reshape(positions(block.query, block.queries), [1, -1, 1])
        there = tf.reshape(positions(block.memory, block.memories), [1, 1, -1])
        conditions = []
        if self.causal:
            conditions.append(there <= here)
        if self.window is not None:
            conditions.append(there > here - self.window)
            if not self.causal:
                conditions.append(there < here + self.window)
        if self.keys.size % block.memories:
            conditions.append(there < self.keys.begin + self.keys.size)
        return conditions


def _part(segments: tf.Tensor, begin: int | tf.Tensor, size: int) -> tf.Tensor:
    """Returns columns [begin, begin + size) of [batch, length], zero-padded."""
    beyond = -segments.shape[1] % size
    if beyond:
        segments = tf.pad(segments, [[0, 0], [0, beyond]])
    return tf.slice(segments, [0, begin], [segments.shape[0], size])


class Packed:
    """The runs of rows [batch, length] with at most `count` segments each, for cuDNN's kernels.

    The kernels see a batch as one sequence of tokens, row after row, in which a segment is a run of
    equal numbers. Two rows `1 1 2` and `1 2 2` with at most 2 segments each have 4 runs: lengths 2
    1 1 2, offsets 0 2 3 4 6. A batch with fewer runs has runs of length 0 at its end. The host
    chooses the number of segments of a row (`t2tp.program.segments`): it is part of the compiled
    program.

    Tensors are int64, because TensorFlow keeps int32 arguments of functions on the host.

    Attributes:
      lengths: [batch, count], the number of tokens of each run of the batch, then zeros.
      offsets: [batch, count + 1], the first token of each run, then the number of all tokens.
      fits: whether there are no more runs, and each number of a row is in one run; a boolean.
    """

    def __init__(self, segments: tf.Tensor, count: int) -> None:
        rows, self._length = segments.shape
        begins = tf.not_equal(segments[:, 1:], segments[:, :-1])
        begins = tf.reshape(tf.pad(begins, [[0, 0], [1, 0]], constant_values=True), [-1])
        self._run = tf.cumsum(tf.cast(begins, tf.int64)) - 1  # Of each token.
        total = rows * count
        each = tf.range(rows * (count + 1), dtype=tf.int64)
        offsets = _count(self._run[None] < each[:, None])
        self._begins = offsets[:total]
        lengths = offsets[1 : total + 1] - self._begins
        self.offsets = tf.reshape(offsets, [rows, count + 1])
        self.lengths = tf.reshape(lengths, [rows, count])
        # Numbers that tokens of a row have in common with its runs.
        numbers, first = tf.reshape(segments, [-1]), tf.minimum(self._begins, begins.shape[0] - 1)
        row = tf.range(begins.shape[0], dtype=tf.int64) // self._length
        is_same = tf.equal(numbers[None], tf.gather(numbers, first)[:, None])
        is_same &= tf.equal(row[None], self._begins[:, None] // self._length)
        is_one_run = tf.reduce_all(tf.equal(_count(is_same), lengths))
        self.fits = tf.logical_and(is_one_run, self._run[-1] < total)

    def by_token(self, x: tf.Tensor) -> tf.Tensor:
        """Reorders [runs, heads, length], by position in the run -> [batch, heads, length]."""
        place = tf.range(self._run.shape[0], dtype=tf.int64) - tf.gather(self._begins, self._run)
        run, place = (tf.reshape(t, [-1, 1, self._length]) for t in (self._run, place))
        return self._gathered(x, run, place)

    def by_run(self, x: tf.Tensor) -> tf.Tensor:
        """Reverses `by_token`; what is after the end of a run has any value."""
        row, begin = self._begins // self._length, self._begins % self._length
        row = tf.minimum(row, x.shape[0] - 1)  # Runs without tokens begin after the last row.
        place = begin[:, None] + tf.range(self._length, dtype=tf.int64)
        place = tf.minimum(place, self._length - 1)
        return self._gathered(x, row[:, None, None], place[:, None])

    def _gathered(self, x: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
        """Returns `x[first, head, last]` for each head, by one index: nothing is transposed."""
        head = tf.range(x.shape[1], dtype=tf.int64)[:, None]
        return tf.gather(tf.reshape(x, [-1]), (first * x.shape[1] + head) * x.shape[2] + last)


_count = functools.partial(tf.math.count_nonzero, axis=1)
