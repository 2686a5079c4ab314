"""Normalization of activations."""

from __future__ import annotations

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.lowering import Lowering


def rms_norm(
    x: mtf.Tensor, scale: mtf.Tensor, dim: mtf.Dimension, epsilon: float = 1e-6
) -> mtf.Tensor:
    """`x / rms(x) * scale`, the root mean square being over `dim`.

    B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467), section 4.
    Computed in float32.

    Args:
      x: [..., dim].
      scale: [dim].
      dim: the last dimension of x.
      epsilon: added to the mean square.

    Returns:
      [..., dim] in the dtype of x.
    """
    if x.shape.dims[-1] != dim or scale.shape.dims != [dim]:
        raise ValueError(
            f"rms_norm over {dim}: x {x.shape} must end in it, scale {scale.shape} be it."
        )
    return RmsNormOperation(x, scale, epsilon).outputs[0]


class RmsNormOperation(mtf.Operation):
    """Inputs x [..., dim] and scale [dim]; outputs y [..., dim] and 1 / rms(x) [...] (float32)."""

    def __init__(self, x: mtf.Tensor, scale: mtf.Tensor, epsilon: float) -> None:
        super().__init__([x, scale], name="rms_norm")
        self._epsilon = epsilon
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=0),
            mtf.Tensor(self, x.shape - x.shape.dims[-1], tf.float32, index=1),
        ]

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor]:
        x, scale = self.inputs
        return RmsNormGradOperation(x, scale, self.outputs[1], grad_ys[0]).outputs

    def lower(self, lowering: Lowering) -> None:
        x = tf.cast(lowering.slice(self.inputs[0]), tf.float32)
        scale = tf.cast(lowering.slice(self.inputs[1]), tf.float32)
        mean_square = _mean(lowering, self.inputs[0], tf.square(x))
        inverse = tf.math.rsqrt(mean_square + self._epsilon)
        y = x * inverse * scale
        lowering.set_slice(self.outputs[0], tf.cast(y, self.outputs[0].dtype))
        lowering.set_slice(self.outputs[1], tf.squeeze(inverse, -1))


class RmsNormGradOperation(mtf.Operation):
    """Inputs x, scale, 1 / rms(x) and dy; outputs the gradients by x [..., dim] and scale [dim]."""

    def __init__(
        self, x: mtf.Tensor, scale: mtf.Tensor, inverse: mtf.Tensor, dy: mtf.Tensor
    ) -> None:
        super().__init__([x, scale, inverse, dy], name="rms_norm_grad")
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=0),
            mtf.Tensor(self, scale.shape, scale.dtype, index=1),
        ]

    def lower(self, lowering: Lowering) -> None:
        x, scale, inverse, dy = (
            tf.cast(lowering.slice(tensor), tf.float32) for tensor in self.inputs
        )
        inverse = inverse[..., None]
        normed = x * inverse
        d_scale = tf.reduce_sum(dy * normed, axis=list(range(x.shape.rank - 1)))
        scaled = dy * scale
        projection = _mean(lowering, self.inputs[0], scaled * normed)
        dx = inverse * (scaled - normed * projection)
        lowering.set_slice(self.outputs[0], tf.cast(dx, self.outputs[0].dtype))
        lowering.set_partial_sum(
            self.outputs[1],
            tf.cast(d_scale, self.outputs[1].dtype),
            self.inputs[0].shape.dims[:-1],
        )


def _mean(lowering: Lowering, tensor: mtf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Mean over the last dimension of `tensor`, which may be split; `x` is of the tensor's
    slice."""
    dim = tensor.shape.dims[-1]
    mesh_impl = lowering.mesh_impl(tensor)
    axis = mesh_impl.tensor_dimension_to_mesh_axis(dim)
    total = tf.reduce_sum(x, axis=-1, keepdims=True)
    if axis is not None:
        total = mesh_impl.collectives.allreduce(total, [axis], "Add")
    return total / dim.size
