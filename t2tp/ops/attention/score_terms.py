"""Terms of attention scores other than q * k: mask, relative bias, dropout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import tensorflow as tf

from t2tp.ops.attention.blocks import Block, Keys
from t2tp.ops.attention.mask import Mask
from t2tp.ops.attention.relative_bias import Bias
from t2tp.ops.attention.weight_dropout import AttentionDropout


@dataclass(frozen=True)
class ScoreTerms:
    """Mask, bias and dropout of one processor's slice."""

    mask: Mask
    bias: Bias | None
    dropout: AttentionDropout | None

    def added(self, scores: tf.Tensor, block: Block) -> tf.Tensor:
        """Adds bias and mask to a block's scores, float32 [batch, heads, queries, memories]."""
        return self._added(scores, block, self.mask.block(block))

    def added_to_all(self, scores: tf.Tensor) -> tf.Tensor:
        """Adds bias and mask to all scores, float32 [batch, heads, queries, memories]."""
        return self._added(scores, self.mask.whole, self.mask.of_whole)

    def _added(self, scores: tf.Tensor, block: Block, mask: tf.Tensor | None) -> tf.Tensor:
        if self.bias is None:
            return scores if mask is None else scores + mask
        bias = self.bias.block(block)
        return scores + (bias if mask is None else bias + mask)

    def of_keys(self, keys: Keys, segments: tf.Tensor | None = None) -> ScoreTerms:
        """Returns the terms of the same queries for other keys, with segments [batch, keys]."""
        return replace(self, mask=self.mask.of_keys(keys, segments))


class Gradients(NamedTuple):
    """Gradients w.r.t. a processor's q (scaled), k, v, and the bias of each distance."""

    q: tf.Tensor
    k: tf.Tensor | None
    v: tf.Tensor | None
    bias: tf.Tensor | None
