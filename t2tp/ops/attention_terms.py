"""What attention has besides q, k and v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from t2tp.ops.attention_bias import Bias
from t2tp.ops.attention_block import Block
from t2tp.ops.attention_dropout import Dropout
from t2tp.ops.attention_mask import Mask


@dataclass(frozen=True)
class Terms:
    """Mask, bias and dropout of one processor's slice."""

    mask: Mask
    bias: Bias | None
    dropout: Dropout | None

    def added(self, scores: tf.Tensor, block: Block) -> tf.Tensor:
        """A block's scores, float32 [batch, heads, queries, memories], with bias and mask."""
        mask = self.mask.block(block)
        if self.bias is None:
            return scores if mask is None else scores + mask
        bias = self.bias.block(block)
        return scores + (bias if mask is None else bias + mask)


class Gradients(NamedTuple):
    """Gradients by a processor's q (scaled), k, v, and by the bias of each distance."""

    q: tf.Tensor
    k: tf.Tensor
    v: tf.Tensor
    bias: tf.Tensor | None
