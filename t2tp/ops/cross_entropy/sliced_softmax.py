"""Softmax cross-entropy where each processor has a slice of the classes."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.hparam_limits import Limits
from t2tp.lowering.context import Lowering
from t2tp.lowering.exact_sums import sum_in_parts
from t2tp.lowering.mesh_impl import SpmdMeshImpl


@dataclass(frozen=True)
class LossOptions:
    """Options of the loss; see the arguments of `softmax_cross_entropy`."""

    z_loss: float = 0.0
    label_smoothing: float = 0.0

    def check(self, vocab: upstream.Dimension) -> None:
        """Raises ValueError for numbers out of range; see `softmax_cross_entropy`."""
        Limits(min=0).check("z_loss", self.z_loss)
        Limits(min=0, below=1).check("label_smoothing", self.label_smoothing)
        if self.label_smoothing and vocab.size == 1:
            raise ValueError(f"label_smoothing needs at least two classes, and {vocab} has one.")


class Losses(NamedTuple):
    """Per-token results, float32 [tokens].

    Attributes:
      nll: the loss without z-loss and label smoothing.
      log_z: the log of the sum of exponentials.
    """

    loss: tf.Tensor
    nll: tf.Tensor
    log_z: tf.Tensor


class SlicedSoftmax:
    """The cross-entropy of [tokens, classes], where a processor has a slice of the classes."""

    def __init__(
        self,
        lowering: Lowering,
        mesh_impl: SpmdMeshImpl,
        dim: upstream.Dimension,
        options: LossOptions,
    ) -> None:
        """Prepares the slice of the classes `dim`."""
        self._lowering = lowering
        self._options = options
        self._dim = dim
        self._mesh_impl = mesh_impl
        self._slice_size = mesh_impl.slice_shape(upstream.Shape([dim]))[0]
        self._axes = mesh_impl.axes_of([dim])
        _, self._parts = lowering.parts_of(dim)
        self._collectives = mesh_impl.collectives

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> Losses:
        """Computes the losses from logits [tokens, classes] and targets, int32 [tokens]."""
        flat = self._masked(logits, logits.dtype.min)
        highest = tf.cast(tf.reduce_max(flat, axis=1), tf.float32)
        highest = self._collectives.allreduce(highest, self._axes, "Max")
        smoothing = self._options.label_smoothing

        def sums(logits: tf.Tensor, highest: tf.Tensor, local: tf.Tensor) -> tf.Tensor:
            shifted = tf.cast(logits, tf.float32) - highest[:, None]
            index, is_here = _index(local, self._slice_size)
            parts = [
                sum_in_parts(tf.exp(shifted), self._parts),
                tf.where(is_here, tf.gather_nd(shifted, index), 0.0),
            ]
            if smoothing:
                parts.append(sum_in_parts(self._masked(shifted), self._parts))
            return tf.stack(parts)

        local_sums = self._lowering.compiled(sums)(flat, highest, self._local(targets))
        total, at_target, *shifted_sum = tf.unstack(self._collectives.sum(local_sums, self._axes))
        # Without the NaN, a target that is in no processor's slice would get a plausible loss.
        is_class = tf.logical_and(targets >= 0, targets < self._dim.size)
        log_total = tf.where(is_class, tf.math.log(total), math.nan)
        log_z = log_total + highest
        nll = loss = log_total - at_target
        if self._options.z_loss:
            loss += self._options.z_loss * tf.square(log_z)
        if smoothing:
            per_class = smoothing / (self._dim.size - 1)
            loss -= per_class * (shifted_sum[0] - self._dim.size * at_target)
            loss -= _entropy(smoothing, self._dim.size)
        return Losses(loss, nll, log_z)

    def gradient(
        self, logits: tf.Tensor, targets: tf.Tensor, log_z: tf.Tensor, d_loss: tf.Tensor
    ) -> tf.Tensor:
        """Computes the gradient w.r.t. the logits, from the gradient w.r.t. the loss [tokens]."""
        z_loss, smoothing = self._options.z_loss, self._options.label_smoothing
        per_class = smoothing / max(self._dim.size - 1, 1)  # The probability of each other class.

        def gradient(
            logits: tf.Tensor, log_z: tf.Tensor, d_loss: tf.Tensor, local: tf.Tensor
        ) -> tf.Tensor:
            # d loss / d log(Z) is 1 without z-loss; d log(Z) / d logits is the softmax.
            by_log_z = d_loss * (1.0 + 2.0 * z_loss * log_z)
            d_logits = tf.exp(tf.cast(logits, tf.float32) - log_z[:, None]) * by_log_z[:, None]
            if smoothing:
                d_logits -= per_class * d_loss[:, None]
            at_target = d_loss * (1.0 - smoothing - per_class)
            on_cpu = self._mesh_impl.target.on_cpu
            d_logits = subtracted_at(d_logits, local, at_target, scatters=on_cpu)
            return tf.cast(self._masked(d_logits), logits.dtype)

        return self._lowering.compiled(gradient)(logits, log_z, d_loss, self._local(targets))

    def divergence(
        self, logits: tf.Tensor, teacher: tf.Tensor, temperature: float, classes: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes KL(teacher || student) over the first `classes` classes, at a temperature.

        Args:
          logits: the student's, [tokens, classes of the slice].
          teacher: the teacher's, of the same shape.
          temperature: divisor of both.
          classes: number of classes to compare.

        Returns:
          float32: the divergence [tokens], and its gradient w.r.t. `logits`.
        """
        is_class = tf.range(self._slice_size) - self._local(tf.constant(0)) < classes
        operands = logits, teacher, is_class

        def scaled(x: tf.Tensor, is_class: tf.Tensor) -> tf.Tensor:
            divided = tf.cast(x, tf.float32) / temperature
            return tf.where(is_class[None, :], divided, divided.dtype.min)

        def maxima(logits: tf.Tensor, teacher: tf.Tensor, is_class: tf.Tensor) -> tf.Tensor:
            return tf.stack([tf.reduce_max(scaled(x, is_class), 1) for x in (logits, teacher)])

        def sums(
            logits: tf.Tensor, teacher: tf.Tensor, is_class: tf.Tensor, highest: tf.Tensor
        ) -> tf.Tensor:
            student, taught = scaled(logits, is_class), scaled(teacher, is_class)
            # `highest[0, :, None]` would lose its last axis: TensorFlow's optimizer replaces a
            # slice of a stack by the stacked tensor.
            of_student, of_teacher = tf.unstack(highest)
            exps = tf.exp(student - of_student[:, None]), tf.exp(taught - of_teacher[:, None])
            addends = *exps, exps[1] * (taught - student)
            return tf.stack([sum_in_parts(x, self._parts) for x in addends])

        def gradient(
            logits: tf.Tensor, teacher: tf.Tensor, is_class: tf.Tensor, log_z: tf.Tensor
        ) -> tf.Tensor:
            of_student, of_teacher = tf.unstack(log_z)
            student = tf.exp(scaled(logits, is_class) - of_student[:, None])
            taught = tf.exp(scaled(teacher, is_class) - of_teacher[:, None])
            return (student - taught) / temperature

        local_highest = self._lowering.compiled(maxima)(*operands)
        highest = self._collectives.allreduce(local_highest, self._axes, "Max")
        local_sums = self._lowering.compiled(sums)(*operands, highest)
        totals = self._collectives.sum(local_sums, self._axes)
        log_z = tf.math.log(totals[:2]) + highest
        kl = totals[2] / totals[1] - log_z[1] + log_z[0]
        return kl, self._lowering.compiled(gradient)(*operands, log_z)

    def _masked(self, x: tf.Tensor, value: float = 0.0) -> tf.Tensor:
        """Sets the padding of the classes in [tokens, classes] to `value`."""
        shape = upstream.Shape([upstream.Dimension("token", x.shape[0]), self._dim])
        return self._mesh_impl.masked(x, shape, [self._dim], value)

    def _local(self, targets: tf.Tensor) -> tf.Tensor:
        """Converts classes to indices in the slice; another processor's class is out of range."""
        first = sum(self._collectives.coordinate(axis) * self._slice_size for axis in self._axes)
        return targets - first


def subtracted_at(
    x: tf.Tensor, columns: tf.Tensor, values: tf.Tensor, *, scatters: bool
) -> tf.Tensor:
    """Subtracts `values` [rows] from `x` [rows, size], at the indices `columns` [rows].

    Rows whose index is out of range stay as they are. On CPUs a scatter is faster than comparing
    each column's index. On GPUs the comparison is faster: XLA fuses it with other operations, but
    writes the operand of a scatter to memory in float32 first.
    """
    size = x.shape[1]
    if scatters:
        index, is_here = _index(columns, size)
        return tf.tensor_scatter_nd_sub(x, index, tf.where(is_here, values, 0.0))
    is_at = tf.equal(tf.range(size), columns[:, None])
    return x - tf.where(is_at, values[:, None], 0.0)


def _index(columns: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns row and column [rows, 2] of each element, and whether the column is in range."""
    is_here = tf.logical_and(columns >= 0, columns < size)
    column = tf.clip_by_value(columns, 0, size - 1)
    return tf.stack([tf.range(columns.shape[0]), column], axis=1), is_here


def _entropy(label_smoothing: float, vocab_size: int) -> float:
    """Returns the entropy of a smoothed target, in nats."""
    confidence = 1.0 - label_smoothing
    per_class = label_smoothing / (vocab_size - 1)
    return -confidence * math.log(confidence) - label_smoothing * math.log(per_class)
