"""Scaled dot-product attention."""

from __future__ import annotations

import math

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.lowering import Lowering

_MASKED = -1e9


def causal_attention(
    q: mtf.Tensor, k: mtf.Tensor, v: mtf.Tensor, segments: mtf.Tensor
) -> mtf.Tensor:
    """Self-attention of each position to itself and those before it in its segment.

    A. Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.2.1. Every
    dimension but the length and the size of a head may be split. The softmax is in float32.

    Args:
      q, k, v: [batch, heads, length, d_kv].
      segments: integers [batch, length]; positions of different segments do not see each other.

    Returns:
      [batch, heads, length, d_kv].
    """
    if not q.shape == k.shape == v.shape:
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} must have one shape.")
    batch, _, length, _ = q.shape.dims
    if segments.shape.dims != [batch, length]:
        raise ValueError(f"segments {segments.shape} must be [{batch}, {length}].")
    return AttentionOperation(q, k, v, segments).outputs[0]


class AttentionOperation(mtf.Operation):
    """Inputs q, k, v [batch, heads, length, d_kv] and segments [batch, length].

    Outputs the result [batch, heads, length, d_kv] and the attention weights [batch, heads, length,
    memory_length].
    """

    def __init__(self, q: mtf.Tensor, k: mtf.Tensor, v: mtf.Tensor, segments: mtf.Tensor) -> None:
        super().__init__([q, k, v, segments], name="attention")
        batch, heads, length, _ = q.shape.dims
        memory_length = mtf.Dimension("memory_length", length.size)
        weights_shape = mtf.Shape([batch, heads, length, memory_length])
        self._outputs = [
            mtf.Tensor(self, q.shape, q.dtype, index=0),
            mtf.Tensor(self, weights_shape, q.dtype, index=1),
        ]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims(
                "unsplittable", [batch.name, heads.name]
            )
        )

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        q, k, v, _ = self.inputs
        result, weights = self.outputs
        return [*AttentionGradOperation(q, k, v, result, weights, grad_ys[0]).outputs, None]

    def lower(self, lowering: Lowering) -> None:
        q, k, v, segments = (lowering.slice(tensor) for tensor in self.inputs)
        length, d_kv = q.shape[2], q.shape[3]
        logits = tf.cast(tf.matmul(q, k, transpose_b=True), tf.float32) / math.sqrt(d_kv)
        positions = tf.range(length)
        is_visible = tf.logical_and(
            positions[:, None] >= positions[None, :],
            tf.equal(segments[:, :, None], segments[:, None, :]),
        )
        logits += tf.where(is_visible, 0.0, _MASKED)[:, None]
        weights = tf.cast(tf.nn.softmax(logits), q.dtype)
        lowering.set_slice(self.outputs[0], tf.matmul(weights, v))
        lowering.set_slice(self.outputs[1], weights)


class AttentionGradOperation(mtf.Operation):
    """Gradients of attention by q, k and v."""

    def __init__(self, *inputs: mtf.Tensor) -> None:
        """Takes q, k, v, the result, the attention weights and the gradient by the result."""
        super().__init__(list(inputs), name="attention_grad")
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=i) for i, x in enumerate(inputs[:3])
        ]

    def lower(self, lowering: Lowering) -> None:
        q, k, v, result, weights, dy = (lowering.slice(tensor) for tensor in self.inputs)
        d_weights = tf.matmul(dy, v, transpose_b=True)
        # sum_m weights * d_weights, for less: sum_d dy * result.
        mean = tf.reduce_sum(dy * result, axis=-1, keepdims=True)
        d_logits = weights * (d_weights - mean) / math.sqrt(q.shape[3])
        lowering.set_slice(self.outputs[0], tf.matmul(d_logits, k))
        lowering.set_slice(self.outputs[1], tf.matmul(d_logits, q, transpose_a=True))
        lowering.set_slice(self.outputs[2], tf.matmul(weights, dy, transpose_a=True))
