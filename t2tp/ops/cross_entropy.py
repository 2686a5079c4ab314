"""Softmax cross-entropy that never gathers the logits of a split vocabulary."""

from __future__ import annotations

import math

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.collectives import Collectives
from t2tp.mesh.lowering import Lowering


def softmax_cross_entropy(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    """Negative log-likelihood of the targets under `softmax(logits)`.

    Where the vocabulary is split over the mesh, three numbers a token are reduced (maximum, sum of
    exponentials, the target's logit; the last two in one collective), never the logits: M. Shoeybi
    et al., "Megatron-LM" (arXiv:1909.08053), section 3.

    Args:
      logits: [..., vocab], any float dtype; computed with in float32.
      targets: [...], integers in [0, vocab).
      vocab_dim: the dimension of the classes.

    Returns:
      float32 [...], in nats. Of a target that is no class it is NaN or, where the vocabulary is not
      split, on CPUs, an error when the program runs.
    """
    batch = logits.shape - vocab_dim
    if logits.shape.dims[-1] != vocab_dim:
        logits = mtf.transpose(logits, batch + vocab_dim)
    if targets.shape != batch:
        raise ValueError(f"Targets {targets.shape} do not have the dimensions of logits {batch}.")
    return CrossEntropyOperation(logits, targets).outputs[0]


class CrossEntropyOperation(mtf.Operation):
    """Inputs logits [..., vocab] and targets [...]; outputs the loss [...] and its gradient by the
    logits [..., vocab]."""

    def __init__(self, logits: mtf.Tensor, targets: mtf.Tensor) -> None:
        super().__init__([logits, targets], name="cross_entropy")
        self._vocab_dim = logits.shape.dims[-1]
        self._outputs = [
            mtf.Tensor(self, targets.shape, tf.float32, index=0),
            mtf.Tensor(self, logits.shape, logits.dtype, index=1),
        ]

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        d_logits = self.outputs[1]
        dy = mtf.cast(grad_ys[0], d_logits.dtype)
        return [mtf.einsum([d_logits, dy], output_shape=d_logits.shape), None]

    def lower(self, lowering: Lowering) -> None:
        mesh_impl = lowering.mesh_impl(self)
        logits = tf.cast(lowering.slice(self.inputs[0]), tf.float32)
        targets = tf.cast(lowering.slice(self.inputs[1]), tf.int32)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(self._vocab_dim)
        if axis is None:
            loss, d_logits = _whole_vocabulary(logits, targets)
        else:
            loss, d_logits = _split_vocabulary(
                logits, targets, self._vocab_dim.size, axis, mesh_impl.collectives
            )
        lowering.set_slice(self.outputs[0], loss)
        lowering.set_slice(self.outputs[1], tf.cast(d_logits, self.outputs[1].dtype))


def _whole_vocabulary(logits: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    vocab_size = logits.shape[-1]
    loss, d_logits = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.reshape(logits, [-1, vocab_size]), labels=tf.reshape(targets, [-1])
    )
    return tf.reshape(loss, targets.shape), tf.reshape(d_logits, logits.shape)


def _split_vocabulary(
    logits: tf.Tensor, targets: tf.Tensor, vocab_size: int, axis: int, collectives: Collectives
) -> tuple[tf.Tensor, tf.Tensor]:
    vocab_slice = logits.shape[-1]
    flat = tf.reshape(logits, [-1, vocab_slice])
    local = tf.reshape(targets, [-1]) - collectives.coordinate(axis) * vocab_slice
    is_here = tf.logical_and(local >= 0, local < vocab_slice)
    rows = tf.range(flat.shape[0])
    index = tf.stack([rows, tf.clip_by_value(local, 0, vocab_slice - 1)], axis=1)

    highest = collectives.allreduce(tf.reduce_max(flat, axis=1), [axis], "Max")
    exponentials = tf.exp(flat - highest[:, None])
    target_logit = tf.where(is_here, tf.gather_nd(flat, index) - highest, 0.0)
    sums = collectives.allreduce(
        tf.stack([tf.reduce_sum(exponentials, axis=1), target_logit]), [axis], "Add"
    )
    # A target that no processor holds must not give a loss that looks right.
    is_class = tf.reshape(tf.logical_and(targets >= 0, targets < vocab_size), [-1])
    total = tf.where(is_class, sums[0], math.nan)
    loss = tf.math.log(total) - sums[1]
    probabilities = exponentials / total[:, None]
    d_logits = tf.tensor_scatter_nd_sub(probabilities, index, tf.cast(is_here, tf.float32))
    return tf.reshape(loss, targets.shape), tf.reshape(d_logits, logits.shape)
