"""Batch norm: normalizes by the mean and variance over the batch."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.lowering.staged_sums import reduce_mean, reduce_sum
from t2tp.mesh.collectives import tree_sum
from t2tp.ops.cast import wide_dtype
from t2tp.ops.norms.moments import combined_moments


def batch_norm(
    x: upstream.Tensor, scale: upstream.Tensor, offset: upstream.Tensor, epsilon: float
) -> tuple[upstream.Tensor, upstream.Tensor, upstream.Tensor]:
    """Computes `(x - mean) / sqrt(variance + epsilon) * scale + offset` per channel.

    Mean and variance are over all dimensions except the last.

    S. Ioffe and C. Szegedy, "Batch Normalization" (arXiv:1502.03167), algorithm 1. The statistics
    are over the global batch. If x is split, the forward and the backward pass have one collective
    each, with two numbers per channel. The norm is computed in at least float32.

    Args:
      x: [..., channels].
      scale: [channels].
      offset: [channels].
      epsilon: added to the variance.

    Returns:
      y, like x; and the mean and the population variance, [channels], at least float32. Mean and
      variance are not differentiable.

    Raises:
      ValueError: scale or offset are not [channels].
    """
    channels = x.shape.dims[-1:]
    if any(tensor.shape.dims != channels for tensor in (scale, offset)):
        raise ValueError(
            f"batch_norm of x {x.shape}: scale {scale.shape} and offset {offset.shape} must be its"
            " last dimension."
        )
    y, mean, variance = BatchNormOperation(x, scale, offset, epsilon).outputs
    return y, mean, variance


class BatchNormOperation(Operation):
    """Computes batch norm.

    Inputs: x [..., channels], scale and offset [channels]. Outputs: y [..., channels], mean and
      variance [channels] (at least float32).
    """

    def __init__(
        self, x: upstream.Tensor, scale: upstream.Tensor, offset: upstream.Tensor, epsilon: float
    ) -> None:
        super().__init__([x, scale, offset], name="batch_norm")
        self._epsilon = epsilon
        self.signature = Signature(combined=x.shape.dims[:-1], exact=ALL, cost="batch_norm")
        self.set_outputs(x, *[(scale.shape, wide_dtype(x))] * 2)

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor | None]:
        inputs = [*self.inputs, *self.outputs[1:], grad_ys[0]]
        return BatchNormGradOperation("batch_norm_grad", self, inputs, *self.inputs).outputs

    def lower(self, lowering: Lowering) -> None:
        dtype = wide_dtype(self.inputs[0])
        x, scale, offset = (tf.cast(lowering.slice(tensor), dtype) for tensor in self.inputs)
        norm = _norm(lowering, self.inputs[0], self._epsilon)
        axes = lowering.mesh_impl(self).axes_of(self.inputs[0].shape.dims[:-1])
        parts = [norm.of_slice(part, scale, offset) for part in _parts(lowering, self, x)]
        collectives = lowering.mesh_impl(self).collectives
        own = [statistics for _, statistics in parts]
        mean, variance = combined_moments(collectives, axes, own)
        y = parts[0][0]
        if axes or len(parts) > 1:
            y = norm.given(x, _Statistics(mean, variance), scale, offset)
        lowering.set_slice(self.outputs[0], tf.cast(y, self.outputs[0].dtype))
        lowering.set_slice(self.outputs[1], mean)
        lowering.set_slice(self.outputs[2], variance)


class BatchNormGradOperation(GradientOperation):
    """Computes the gradient of batch norm.

    Inputs: x, scale, offset, mean, variance and dy. Outputs: the gradients w.r.t. x [...,
      channels], scale and offset [channels].
    """

    def lower(self, lowering: Lowering) -> None:
        dtype = wide_dtype(self.inputs[0])
        x, scale, _, mean, variance, dy = (
            tf.cast(lowering.slice(tensor), dtype) for tensor in self.inputs
        )
        epsilon = self.forward._epsilon
        norm, statistics = _norm(lowering, self.inputs[0], epsilon), _Statistics(mean, variance)
        axes = lowering.mesh_impl(self).axes_of(self.inputs[0].shape.dims[:-1])
        slices = [_parts(lowering, self, tensor) for tensor in (x, dy)]
        is_whole = not axes and len(slices[0]) == 1 and type(norm) is _FusedNorm
        parts = [
            norm.gradients(part, statistics, scale, d, is_whole)
            for part, d in zip(*slices, strict=True)
        ]
        gradients = parts[0]
        if not is_whole:
            straight = tf.concat([of_part[0] for of_part in parts], 0)
            count = math.prod(parts[0][0].shape[:-1])
            sums = [tf.stack(of_part[1:]) / count for of_part in parts]
            by_scale, by_offset = tf.unstack(_mean_over(axes, lowering, self.inputs[0], sums))
            # Adds the part of the gradient w.r.t. x that flows through the mean and the variance.
            factor = scale * tf.math.rsqrt(variance + epsilon)
            dx = straight - norm.given(x, statistics, factor * by_scale, factor * by_offset)
            count = math.prod(dim.size for dim in self.inputs[0].shape.dims[:-1])
            gradients = dx, count * by_scale, count * by_offset
        for output, value in zip(self.outputs, gradients, strict=True):
            lowering.set_slice(output, tf.cast(value, output.dtype))


class _Statistics(NamedTuple):
    """The mean and the variance of channels, [channels]."""

    mean: tf.Tensor
    variance: tf.Tensor


@dataclass(frozen=True)
class _FusedNorm:
    """Batch norm of a slice x [..., channels] by TensorFlow's kernels.

    Statistics, scale and offset are [channels], all in float32.
    """

    epsilon: float

    def of_slice(
        self, x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
    ) -> tuple[tf.Tensor, _Statistics]:
        """Normalizes x by its own mean and variance."""
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=_as_images(x), scale=scale, offset=offset, mean=[], variance=[], epsilon=self.epsilon
        )
        count = math.prod(x.shape[:-1])
        # The kernel returns the sample variance.
        return tf.reshape(y, x.shape), _Statistics(mean, variance * ((count - 1) / count))

    def given(
        self, x: tf.Tensor, statistics: _Statistics, scale: tf.Tensor, offset: tf.Tensor
    ) -> tf.Tensor:
        """Normalizes x by a given mean and variance."""
        y, *_ = tf.raw_ops.FusedBatchNormV3(
            x=_as_images(x),
            scale=scale,
            offset=offset,
            **statistics._asdict(),
            epsilon=self.epsilon,
            is_training=False,
        )
        return tf.reshape(y, x.shape)

    def gradients(
        self, x: tf.Tensor, statistics: _Statistics, scale: tf.Tensor, dy: tf.Tensor, is_whole: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Computes the gradients of `given` w.r.t. x, scale and offset, for constant statistics.

        If `is_whole`, the gradients of `of_slice`: one pass over x and dy, in place of three.
        """
        dx, d_scale, d_offset, *_ = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=_as_images(dy),
            x=_as_images(x),
            scale=scale,
            reserve_space_1=statistics.mean,
            reserve_space_2=statistics.variance,
            reserve_space_3=tf.zeros([0]),
            epsilon=self.epsilon,
            is_training=is_whole,
        )
        return tf.reshape(dx, x.shape), d_scale, d_offset


class _Composed(_FusedNorm):
    """Batch norm in elementary operations, where `_FusedNorm` cannot be used.

    XLA would expand TensorFlow's fused operation into operations that compute the variance as the
    difference of two large numbers, which loses precision.
    """

    def of_slice(
        self, x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
    ) -> tuple[tf.Tensor, _Statistics]:
        """See the base class."""
        rows = _rows(x)
        mean = reduce_mean(x, rows)
        variance = reduce_mean(tf.math.squared_difference(x, mean), rows)
        statistics = _Statistics(mean, variance)
        return self.given(x, statistics, scale, offset), statistics

    def given(
        self, x: tf.Tensor, statistics: _Statistics, scale: tf.Tensor, offset: tf.Tensor
    ) -> tf.Tensor:
        """See the base class."""
        return self._normed(x, statistics) * scale + offset

    def gradients(
        self, x: tf.Tensor, statistics: _Statistics, scale: tf.Tensor, dy: tf.Tensor, is_whole: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """See the base class; `is_whole` is false."""
        rows = _rows(x)
        factor = tf.math.rsqrt(statistics.variance + self.epsilon) * scale
        d_scale = reduce_sum(dy * self._normed(x, statistics), rows)
        return dy * factor, d_scale, reduce_sum(dy, rows)

    def _normed(self, x: tf.Tensor, statistics: _Statistics) -> tf.Tensor:
        return (x - statistics.mean) * tf.math.rsqrt(statistics.variance + self.epsilon)


def _norm(lowering: Lowering, tensor: upstream.Tensor, epsilon: float) -> _FusedNorm:
    """Returns the implementation to use for slices of a tensor in this program."""
    # TensorFlow's kernels can run outside of the regions that XLA compiles. Their gradient for GPUs
    # is not deterministic, and they do not support float64.
    target = lowering.mesh_impl(tensor).target
    uses_kernels = target.compiles_regions and target.on_cpu and tensor.dtype != tf.float64
    return _FusedNorm(epsilon) if uses_kernels else _Composed(epsilon)


def _as_images(x: tf.Tensor) -> tf.Tensor:
    """Reshapes [..., channels] to the four dimensions that the kernels require."""
    return x if x.shape.rank == 4 else tf.reshape(x, [-1, 1, 1, x.shape[-1]])


def _rows(x: tf.Tensor) -> list[int]:
    return list(range(x.shape.rank - 1))


def _parts(lowering: Lowering, op: Operation, x: tf.Tensor) -> list[tf.Tensor]:
    """Divides a slice into parts, usually one, whose sums are added in a fixed order."""
    _, count = lowering.parts_of(op.inputs[0].shape.dims[0])
    return tf.split(x, count) if count > 1 else [x]


def _mean_over(
    axes: list[int], lowering: Lowering, tensor: upstream.Tensor, parts: list[tf.Tensor]
) -> tf.Tensor:
    """Averages over the processor's `parts`, and over the mesh `axes`."""
    mesh_impl = lowering.mesh_impl(tensor)
    slices = len(parts) * math.prod(mesh_impl.shape[axis].size for axis in axes)
    return mesh_impl.collectives.sum(tree_sum(parts), axes) / slices
