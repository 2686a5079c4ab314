"""Who sees whom in attention."""

from __future__ import annotations

import tensorflow as tf

from t2tp.ops.attention_block import Block, Queries

# Added to a score that does not count. No sum of a score and this comes near a score.
MASKED = -1e9


class Mask:
    """What the queries of one processor's slice see of the memory.

    Attributes:
      queries: which those are.
      memory_length: number of keys.
      may_be_blind: whether there may be a query that sees nothing: its result is zero.
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
        """Says who sees whom; see `attention`.

        Args:
          queries: which of all queries these are.
          memory_length: number of keys.
          causal: whether queries see no later position.
          window: how far they see, or None.
          segments: of these queries, [batch, queries], or None.
          memory_segments: of the whole memory, [batch, memory_length], or None.
          memory_stride: how many places in a row of the queries' each key stands for.
          may_be_blind: whether segments or stride may leave a query without anything to see.
        """
        self.queries = queries
        self.memory_length = memory_length
        self.may_be_blind = may_be_blind
        self._causal = causal
        self._window = window
        self._stride = memory_stride
        self._segments = segments
        self._memory_segments = memory_segments

    def seen(self, query: int, queries: int) -> tuple[int, int]:
        """Where the memory begins and ends of which some of these queries see something."""
        begin, end = 0, self.memory_length
        if self._window is not None:
            begin = max(0, query - self._window + 1)
            end = min(end, query + queries + self._window - 1)
        if self._causal:
            end = min(end, (query + queries) // self._stride)
        return begin, end

    def block(self, block: Block) -> tf.Tensor | None:
        """What to add to the scores: float32 [batch or 1, 1, queries, memories], 0 or `MASKED`;
        None for nothing.

        What is beyond the end of the memory is seen by no query; beyond the last of these
        queries all is well, because nobody looks.
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
        """Booleans [1, queries or 1, memories]."""
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
    """Columns of [batch, length], as far as there are any and then zeros."""
    beyond = -segments.shape[1] % size
    if beyond:
        segments = tf.pad(segments, [[0, 0], [0, beyond]])
    return tf.slice(segments, [0, begin], [segments.shape[0], size])
