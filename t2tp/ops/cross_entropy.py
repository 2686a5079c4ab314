"""Softmax cross-entropy that never gathers the logits of a split vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.staged_sums import reduce_sum


@dataclass(frozen=True)
class _Options:
    """See `softmax_cross_entropy`."""

    z_loss: float
    label_smoothing: float


def softmax_cross_entropy(
    logits: upstream.Tensor,
    targets: upstream.Tensor,
    vocab_dim: upstream.Dimension,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> upstream.Tensor:
    """Computes the negative log-likelihood of the targets under `softmax(logits)`.

    If the vocabulary is split over the mesh, three numbers per token are all-reduced (the maximum,
    and in one collective the sum of exponentials and the target's logit), never the logits: M.
    Shoeybi et al., "Megatron-LM" (arXiv:1909.08053), section 3. Label smoothing needs a fourth, the
    sum of the logits, in the same collective. Between the collectives XLA fuses each pass over the
    logits into one kernel; of tensors of their size only the logits are stored for the gradient.

    Args:
      logits: [..., vocab], any float dtype; converted to float32.
      targets: [...], integers in [0, vocab).
      vocab_dim: the dimension of the classes.
      z_loss: adds `z_loss * log(Z)**2`, where Z is the sum of exponentials, so that the logits do
        not drift: A. Chowdhery et al., "PaLM" (arXiv:2204.02311), section 5, uses 1e-4.
      label_smoothing: the probability distributed equally over all *other* classes: C. Szegedy et
        al. (arXiv:1512.00567), section 7, as in tensor2tensor: the entropy of the smoothed target
        is subtracted, so that the min loss is 0.

    Returns:
      float32 [...], in nats; NaN for a target that is not a class.

    Raises:
      ValueError: the targets do not have the dimensions of the logits without `vocab_dim`, z_loss
        is negative, or label_smoothing is not in [0, 1) or there is only one class.
    """
    batch = logits.shape - vocab_dim
    if logits.shape.dims[-1] != vocab_dim:
        logits = upstream.transpose(logits, batch + vocab_dim)
    if targets.shape != batch:
        raise ValueError(f"Targets {targets.shape} do not have the dimensions of logits {batch}.")
    if z_loss < 0:
        raise ValueError(f"z_loss must be 0 or above (PaLM has 1e-4), not {z_loss}.")
    if not 0 <= label_smoothing < 1:
        raise ValueError(
            f"label_smoothing must be in [0, 1) (0.1 is usual), not {label_smoothing}."
        )
    if label_smoothing and vocab_dim.size == 1:
        raise ValueError(f"label_smoothing needs at least two classes, and {vocab_dim} has one.")
    options = _Options(z_loss, label_smoothing)
    return CrossEntropyOperation(logits, targets, options).outputs[0]


class CrossEntropyOperation(Operation):
    """Computes the cross-entropy.

    Inputs: logits [..., vocab] and targets [...]. Outputs: the loss [...] and log(Z) [...],
      float32.
    """

    cost_kind = "cross_entropy"
    accepts_padding = True

    def __init__(
        self, logits: upstream.Tensor, targets: upstream.Tensor, options: _Options
    ) -> None:
        super().__init__([logits, targets], name="cross_entropy")
        self._options = options
        self._outputs = [
            upstream.Tensor(self, targets.shape, tf.float32, index=0),
            upstream.Tensor(self, targets.shape, tf.float32, index=1),
        ]
        self.ordered_dims = logits.shape.dims[-1:]

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor | None]:
        logits, targets = self.inputs
        log_z = self.outputs[1]
        grad = CrossEntropyGradOperation(logits, targets, log_z, grad_ys[0], self._options)
        return [grad.outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        logits, targets = (lowering.slice(x) for x in self.inputs)
        vocab = _VocabSlice(lowering, self.inputs[0])
        flat = vocab.masked(tf.reshape(logits, [-1, logits.shape[-1]]), logits.dtype.min)
        highest = tf.cast(tf.reduce_max(flat, axis=1), tf.float32)
        highest = vocab.allreduce(highest, "Max")
        smoothing = self._options.label_smoothing

        def sums(logits: tf.Tensor, highest: tf.Tensor, local: tf.Tensor) -> tf.Tensor:
            shifted = tf.cast(logits, tf.float32) - highest[:, None]
            index, is_here = vocab.target_index(local)
            parts = [
                reduce_sum(tf.exp(shifted), 1),
                tf.where(is_here, tf.gather_nd(shifted, index), 0.0),
            ]
            if smoothing:
                parts.append(reduce_sum(vocab.masked(shifted), 1))
            return tf.stack(parts)

        flat_targets = tf.reshape(tf.cast(targets, tf.int32), [-1])
        local_sums = lowering.compiled(sums)(flat, highest, vocab.local(flat_targets))
        total, at_target, *shifted_sum = tf.unstack(vocab.allreduce(local_sums, "Add"))
        # A target that is in no processor's slice must not give a plausible loss.
        is_class = tf.logical_and(flat_targets >= 0, flat_targets < vocab.size)
        log_total = tf.where(is_class, tf.math.log(total), math.nan)
        log_z = log_total + highest
        loss = log_total - at_target + self._options.z_loss * tf.square(log_z)
        if smoothing:
            per_class = smoothing / (vocab.size - 1)
            loss -= per_class * (shifted_sum[0] - vocab.size * at_target)
            loss -= _entropy(smoothing, vocab.size)
        lowering.set_slice(self.outputs[0], tf.reshape(loss, targets.shape))
        lowering.set_slice(self.outputs[1], tf.reshape(log_z, targets.shape))


class CrossEntropyGradOperation(Operation):
    """Computes the gradient of the cross-entropy.

    Inputs: logits [..., vocab], targets, log(Z) and the gradient w.r.t. the loss [...]. Output: the
      gradient w.r.t. the logits.
    """

    cost_kind = "cross_entropy"
    accepts_padding = True

    def __init__(
        self,
        logits: upstream.Tensor,
        targets: upstream.Tensor,
        log_z: upstream.Tensor,
        d_loss: upstream.Tensor,
        options: _Options,
    ) -> None:
        super().__init__([logits, targets, log_z, d_loss], name="cross_entropy_grad")
        self._options = options
        self._outputs = [upstream.Tensor(self, logits.shape, logits.dtype)]
        self.ordered_dims = logits.shape.dims[-1:]

    def lower(self, lowering: Lowering) -> None:
        logits, targets, log_z, d_loss = (lowering.slice(x) for x in self.inputs)
        vocab = _VocabSlice(lowering, self.inputs[0])
        z_loss, smoothing = self._options.z_loss, self._options.label_smoothing
        per_class = smoothing / max(vocab.size - 1, 1)  # to each other class

        def gradient(
            logits: tf.Tensor, log_z: tf.Tensor, d_loss: tf.Tensor, local: tf.Tensor
        ) -> tf.Tensor:
            index, is_here = vocab.target_index(local)
            # d loss / d log(Z) is 1 without z-loss; d log(Z) / d logits is the softmax.
            by_log_z = d_loss * (1.0 + 2.0 * z_loss * log_z)
            d_logits = tf.exp(tf.cast(logits, tf.float32) - log_z[:, None]) * by_log_z[:, None]
            if smoothing:
                d_logits -= per_class * d_loss[:, None]
            at_target = tf.where(is_here, d_loss * (1.0 - smoothing - per_class), 0.0)
            d_logits = tf.tensor_scatter_nd_sub(d_logits, index, at_target)
            return tf.cast(vocab.masked(d_logits), logits.dtype)

        d_logits = lowering.compiled(gradient)(
            tf.reshape(logits, [-1, logits.shape[-1]]),
            tf.reshape(log_z, [-1]),
            tf.reshape(tf.cast(d_loss, tf.float32), [-1]),
            vocab.local(tf.reshape(tf.cast(targets, tf.int32), [-1])),
        )
        lowering.set_slice(self.outputs[0], tf.reshape(d_logits, logits.shape))


class _VocabSlice:
    """The slice of classes whose logits this processor has.

    Attributes:
      size: number of all classes.
    """

    def __init__(self, lowering: Lowering, logits: upstream.Tensor) -> None:
        """Creates the slice for the last dimension of `logits`."""
        mesh_impl = lowering.mesh_impl(logits)
        dim = logits.shape.dims[-1]
        axis = mesh_impl.tensor_dimension_to_mesh_axis(dim)
        self.size = dim.size
        self._dim = dim
        self._mesh_impl = mesh_impl
        self._slice_size = mesh_impl.slice_shape(upstream.Shape([dim]))[0]
        self._axes = [] if axis is None else [axis]
        self._collectives = mesh_impl.collectives

    def allreduce(self, x: tf.Tensor, merge_op: str) -> tf.Tensor:
        """Reduces over the processors that have the other classes."""
        return self._collectives.allreduce(x, self._axes, merge_op)

    def masked(self, x: tf.Tensor, value: float = 0.0) -> tf.Tensor:
        """Replaces the padding of [token, class] where the mesh does not divide the classes."""
        shape = upstream.Shape([upstream.Dimension("token", x.shape[0]), self._dim])
        return self._mesh_impl.masked(x, shape, [self._dim], value)

    def local(self, targets: tf.Tensor) -> tf.Tensor:
        """Converts classes to indices in the slice; other processors' classes are out of range."""
        first = sum(self._collectives.coordinate(axis) * self._slice_size for axis in self._axes)
        return targets - first

    def target_index(self, local: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns row and column [token, 2] of each target's logit, and whether it is here."""
        is_here = tf.logical_and(local >= 0, local < self._slice_size)
        column = tf.clip_by_value(local, 0, self._slice_size - 1)
        return tf.stack([tf.range(local.shape[0]), column], axis=1), is_here


def _entropy(label_smoothing: float, vocab_size: int) -> float:
    """Returns the entropy of a smoothed target, in nats."""
    confidence = 1.0 - label_smoothing
    per_class = label_smoothing / (vocab_size - 1)
    return -confidence * math.log(confidence) - label_smoothing * math.log(per_class)
