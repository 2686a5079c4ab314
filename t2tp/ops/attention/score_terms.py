"""Steps between the scores q * k and the weights: soft cap, relative bias, mask, sinks, dropout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from t2tp.ops.attention.blocks import Block, KeyRange, added_in_turn, in_key_blocks
from t2tp.ops.attention.mask import MASKED, Mask
from t2tp.ops.attention.relative_bias import Bias
from t2tp.ops.attention.weight_dropout import AttentionDropout


@dataclass(frozen=True)
class ScoreTerms:
    """The steps from scores to weights, for one processor's slice.

    Attributes:
      query_block: number of queries of a block.
      soft_cap: scores `s` become `soft_cap * tanh(s / soft_cap)`; 0: no cap.
      sinks: float32 [heads], one more logit per head in the softmax, without a value.
      exact: whether results have the same bits for any number of queries and keys.
      query_parts: number of parts of the queries. Gradients w.r.t. keys are summed within each
        part, and these sums are added as a tree.
    """

    mask: Mask
    bias: Bias | None
    dropout: AttentionDropout | None
    query_block: int
    soft_cap: float = 0.0
    sinks: tf.Tensor | None = None
    exact: bool = False
    query_parts: int = 1

    def added(self, scores: tf.Tensor, block: Block | None = None) -> tf.Tensor:
        """Caps a block's scores, or all scores, and adds bias and mask.

        Scores are float32 [batch, heads, queries, memories].
        """
        mask = self.mask.of_whole if block is None else self.mask.block(block)
        scores = capped(scores, self.soft_cap)
        if self.bias is None:
            return scores if mask is None else scores + mask
        bias = self.bias.block(block or self.mask.whole)
        return scores + (bias if mask is None else bias + mask)

    def of_keys(self, keys: KeyRange, segments: tf.Tensor | None = None) -> ScoreTerms:
        """Returns the terms of the same queries for other keys, with segments [batch, keys]."""
        return replace(self, mask=replace(self.mask, keys=keys, memory_segments=segments))


def capped(scores: tf.Tensor, soft_cap: float) -> tf.Tensor:
    """Limits scores smoothly to (`-soft_cap`, `soft_cap`); a `soft_cap` of 0 changes nothing."""
    return soft_cap * tf.tanh(scores / soft_cap) if soft_cap else scores


def through_cap(d_scores: tf.Tensor, scores: tf.Tensor, soft_cap: float) -> tf.Tensor:
    """Returns the gradient w.r.t. `scores` from the gradient w.r.t. the capped scores."""
    return d_scores * (1.0 - tf.square(tf.tanh(scores / soft_cap)))


def softmax_with_sinks(
    scores: tf.Tensor, sinks: tf.Tensor | None, *, exact: bool = False
) -> tf.Tensor:
    """Computes the softmax of scores [batch, heads, queries, memories] and a sink for each head.

    With `exact`, a weight has the same bits for any number of queries, and does not depend on how
    many masked keys follow the last visible key.
    """
    if exact:
        blocks = in_key_blocks(scores, 3, MASKED)
        highest = tf.reduce_max(scores, -1, keepdims=True)
        if sinks is not None:
            highest = tf.maximum(highest, sinks[:, None, None])
        weights = tf.exp(blocks - highest[..., None])
        total = added_in_turn(tf.reduce_sum(weights, -1), 3)[..., None]
        if sinks is not None:
            total += tf.exp(sinks[:, None, None] - highest)
        weights = tf.reshape(weights, [*scores.shape[:3], -1])[..., : scores.shape[3]]
        return weights / total
    if sinks is None:
        return tf.nn.softmax(scores)
    column = tf.broadcast_to(sinks[:, None, None], [*scores.shape[:-1], 1])
    return tf.nn.softmax(tf.concat([scores, column], -1))[..., :-1]


class Gradients(NamedTuple):
    """Gradients w.r.t. a part of a processor's queries (scaled), and the bias of each distance."""

    q: tf.Tensor
    bias: tf.Tensor | None = None


# The gradients of each part of the queries, and the gradients w.r.t. keys and values.
AllGradients: TypeAlias = tuple[list[Gradients], tuple[tf.Tensor, tf.Tensor]]
