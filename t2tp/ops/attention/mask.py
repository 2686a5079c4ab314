"""Attention masks: which keys a query attends to."""

from __future__ import annotations

import tensorflow as tf

from t2tp.ops.attention.blocks import Block, Queries

# Added to masked scores; the sum is far below any score.
MASKED = -1e9


class Mask:
    """The keys that each query of one processor's slice attends to.

    Attributes:
      queries: the processor's slice of the queries.
      memory_length: number of keys.
      may_be_blind: whether a query may attend to nothing, which gives a result of zero.
    """

    def __init__(
        self,
        queries: Queries,
        memory_length: int,
        *,
        causal: bool = False,
        window: int | None = None,
        segments: tf.Tensor | None = None,
        memory_segments: tf.Tensor | None = None,
        memory_stride: int = 1,
        may_be_blind: bool = False,
    ) -> None:
        """Creates a mask; see `attention`.

        Args:
          queries: the processor's slice of the queries.
          memory_length: number of keys.
          causal: whether queries attend to no later positions.
          window: how many positions they attend to; None: all.
          segments: of these queries, [batch, queries], or None.
          memory_segments: of the full memory, [batch, memory_length], or None.
          memory_stride: number of consecutive query positions per key.
          may_be_blind: whether segments or stride may mask all keys of a query.
        """
        self.queries = queries
        self.memory_length = memory_length
        self.may_be_blind = may_be_blind
        self._causal = causal
        self._window = window
        self._stride = memory_stride
        self._segments = segments
        self._memory_segments = memory_segments

    def visible_range(self, query: int, queries: int) -> tuple[int, int]:
        """Returns the keys that these queries attend to: the first, and one after the last."""
        begin, end = 0, self.memory_length
        if self._window is not None:
            begin = max(0, query - self._window + 1)
            end = min(end, query + queries + self._window - 1)
        if self._causal:
            end = min(end, (query + queries) // self._stride)
        return begin, end

    def block(self, block: Block) -> tf.Tensor | None:
        """Returns the mask to add to scores: 0 or `MASKED`; None for no mask.

        It is float32 [batch or 1, 1, queries, memories].

        Keys beyond the end of the memory are masked. Queries beyond the last one may have any mask:
        their results are never read.
        """
        conditions = self._conditions_on_places(block)
        if self._segments is not None:
            ours = _part(self._segments, block.query - self.queries.begin, block.queries)
            theirs = _part(self._memory_segments, block.memory, block.memories)
            conditions.append(tf.equal(ours[:, :, None], theirs[:, None, :]))
        if not conditions:
            return None
        is_seen = conditions[0]
        for condition in conditions[1:]:
            is_seen = tf.logical_and(is_seen, condition)
        return tf.where(is_seen, 0.0, MASKED)[:, None]

    def _conditions_on_places(self, block: Block) -> list[tf.Tensor]:
        """Returns booleans [1, queries or 1, memories]."""
        here = (block.query + tf.range(block.queries))[None, :, None]
        there = (block.memory + tf.range(block.memories))[None, None, :]
        conditions = []
        if self._causal:
            conditions.append(there * self._stride + self._stride - 1 <= here)
        if self._window is not None:
            conditions.append(there > here - self._window)
            if not self._causal:
                conditions.append(there < here + self._window)
        if self.memory_length % block.memories:
            conditions.append(there < self.memory_length)
        return conditions


def _part(segments: tf.Tensor, begin: int | tf.Tensor, size: int) -> tf.Tensor:
    """Returns columns of [batch, length], zero-padded."""
    beyond = -segments.shape[1] % size
    if beyond:
        segments = tf.pad(segments, [[0, 0], [0, beyond]])
    return tf.slice(segments, [0, begin], [segments.shape[0], size])
