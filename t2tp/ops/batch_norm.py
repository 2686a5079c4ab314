"""Normalization of pictures by the mean and variance of many places at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def batch_norm(
    x: mtf.Tensor, scale: mtf.Tensor, offset: mtf.Tensor, pivot: mtf.Tensor, epsilon: float
) -> tuple[mtf.Tensor, mtf.Tensor, mtf.Tensor]:
    """`(x - mean) / sqrt(variance + epsilon) * scale + offset`, mean and variance being over all
    dimensions but the last.

    S. Ioffe and C. Szegedy, "Batch Normalization" (arXiv:1502.03167), algorithm 1. Of a batch, or
    pictures, that are split over the mesh the statistics are those of the whole: one collective
    forward and one backward, each of two numbers a channel. Computed in float32.

    Args:
      x: [..., channels].
      scale: [channels].
      offset: [channels].
      pivot: [channels], float32: a guess of the mean, such as the running one. The nearer it is,
        the fewer digits are lost where the slices' means are put together; the result does
        not depend on it otherwise.
      epsilon: added to the variance.

    Returns:
      y, like x; the mean and the variance (of the population, float32 [channels]), which have no
      gradient.

    Raises:
      ValueError: scale, offset or pivot are not [channels].
    """
    channels = x.shape.dims[-1:]
    if any(tensor.shape.dims != channels for tensor in (scale, offset, pivot)):
        raise ValueError(
            f"batch_norm of x {x.shape}: scale {scale.shape}, offset {offset.shape} and pivot"
            f" {pivot.shape} must be its last dimension."
        )
    y, mean, variance = BatchNormOperation(x, scale, offset, pivot, epsilon).outputs
    return y, mean, variance


class BatchNormOperation(mtf.Operation):
    """Inputs x [..., channels], scale, offset and pivot [channels]; outputs y [..., channels], mean
    and variance [channels] (float32)."""

    def __init__(
        self,
        x: mtf.Tensor,
        scale: mtf.Tensor,
        offset: mtf.Tensor,
        pivot: mtf.Tensor,
        epsilon: float,
    ) -> None:
        super().__init__([x, scale, offset, pivot], name="batch_norm")
        self._epsilon = epsilon
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=0),
            mtf.Tensor(self, scale.shape, tf.float32, index=1),
            mtf.Tensor(self, scale.shape, tf.float32, index=2),
        ]

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        x, scale, offset, _ = self.inputs
        _, mean, variance = self.outputs
        inputs = [x, scale, offset, mean, variance, grad_ys[0]]
        return [*BatchNormGradOperation(inputs, self._epsilon).outputs, None]

    def lower(self, lowering: Lowering) -> None:
        x, scale, offset, pivot = (
            tf.cast(lowering.slice(tensor), tf.float32) for tensor in self.inputs
        )
        rows = list(range(x.shape.rank - 1))
        mean = tf.reduce_mean(x, rows)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), rows)
        away = mean - pivot
        # Slices are of one size: the mean of all is the mean of theirs.
        means = tf.stack([away, variance + tf.square(away)])
        away, square = tf.unstack(_mean_over_slices(lowering, self.inputs[0], means))
        mean, variance = pivot + away, tf.maximum(square - tf.square(away), 0.0)
        factor = tf.math.rsqrt(variance + self._epsilon) * scale
        y = (x - mean) * factor + offset
        lowering.set_slice(self.outputs[0], tf.cast(y, self.outputs[0].dtype))
        lowering.set_slice(self.outputs[1], mean)
        lowering.set_slice(self.outputs[2], variance)


class BatchNormGradOperation(mtf.Operation):
    """Inputs x, scale, offset, mean, variance and dy; outputs the gradients by x [..., channels],
    scale and offset [channels]."""

    def __init__(self, inputs: list[mtf.Tensor], epsilon: float) -> None:
        super().__init__(inputs, name="batch_norm_grad")
        self._epsilon = epsilon
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=i) for i, x in enumerate(inputs[:3])
        ]

    def lower(self, lowering: Lowering) -> None:
        x, scale, _, mean, variance, dy = (
            tf.cast(lowering.slice(tensor), tf.float32) for tensor in self.inputs
        )
        inverse = tf.math.rsqrt(variance + self._epsilon)
        normed = (x - mean) * inverse
        rows = list(range(x.shape.rank - 1))
        means = tf.stack([tf.reduce_mean(dy * normed, rows), tf.reduce_mean(dy, rows)])
        by_scale, by_offset = tf.unstack(_mean_over_slices(lowering, self.inputs[0], means))
        dx = scale * inverse * (dy - by_offset - normed * by_scale)
        count = math.prod(dim.size for dim in self.inputs[0].shape.dims[:-1])
        d_scale, d_offset = count * by_scale, count * by_offset
        for output, value in zip(self.outputs, (dx, d_scale, d_offset), strict=True):
            lowering.set_slice(output, tf.cast(value, output.dtype))


def _mean_over_slices(lowering: Lowering, tensor: mtf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Of the processors that hold the same channels and other places."""
    mesh_impl = lowering.mesh_impl(tensor)
    axes = sorted(set(mesh_impl.tensor_layout(mtf.Shape(tensor.shape.dims[:-1]))) - {None})
    slices = math.prod(mesh_impl.shape[axis].size for axis in axes)
    return mesh_impl.collectives.allreduce(x, axes, "Add") / slices
