"""Layer norm and RMS norm."""

import math
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.exact_sums import in_vectors
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import DROPPED, Signature
from t2tp.lowering.slice_shapes import expanded
from t2tp.lowering.staged_sums import reduce_mean, reduce_sum
from t2tp.ops.cast import wide_dtype
from t2tp.ops.norms.moments import combined_moments, set_vector_gradients


def rms_norm(
    x: upstream.Tensor,
    scale: upstream.Tensor,
    dims: upstream.Dimension | Sequence[upstream.Dimension],
    epsilon: float = 1e-6,
) -> upstream.Tensor:
    """Computes `x / rms(x) * scale`, with the root mean square over `dims`, which may be split.

    B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467), section 4.
    The norm is computed in at least float32.

    Args:
      x: [...].
      scale: [dims].
      dims: a dimension of x, or several in the order of x.
      epsilon: added to the mean square.

    Returns:
      a tensor like x.

    Raises:
      ValueError: x does not have `dims` in this order, or scale is not [dims].
    """
    dims = [dims] if isinstance(dims, upstream.Dimension) else list(dims)
    if [dim for dim in x.shape.dims if dim in dims] != dims or scale.shape.dims != dims:
        raise ValueError(
            f"rms_norm over {dims}: x {x.shape} must have them in this order, and scale"
            f" {scale.shape} must be them."
        )
    return NormOperation([x, scale], epsilon).outputs[0]


def layer_norm(
    x: upstream.Tensor,
    scale: upstream.Tensor,
    bias: upstream.Tensor,
    dim: upstream.Dimension,
    epsilon: float = 1e-6,
) -> upstream.Tensor:
    """Computes `(x - mean) / sqrt(variance + epsilon) * scale + bias`.

    Mean and variance are over `dim`. If `dim` is split, the forward and the backward pass have one
    collective each, with two numbers per token.

    J. Ba et al., "Layer Normalization" (arXiv:1607.06450), section 3. The norm is computed in at
    least float32.

    Args:
      x: [..., dim].
      scale: [dim].
      bias: [dim].
      dim: the last dimension of x.
      epsilon: added to the variance.

    Returns:
      [..., dim] in the dtype of x.

    Raises:
      ValueError: x does not end in `dim`, or scale or bias are not [dim].
    """
    if x.shape.dims[-1] != dim or not scale.shape.dims == bias.shape.dims == [dim]:
        raise ValueError(
            f"layer_norm over {dim}: x {x.shape} must end in it, scale {scale.shape} and bias"
            f" {bias.shape} be it."
        )
    return NormOperation([x, scale, bias], epsilon).outputs[0]


class NormOperation(Operation):
    """Computes layer norm; without a bias, RMS norm, which subtracts no mean.

    Inputs: x [...], scale [dims] and, for layer norm, bias [dims]. Outputs: y, like x; and
      statistics without `dims`, at least float32. RMS norm has one statistic, 1 / the root mean
      square of x. Layer norm has two: 1 / the standard deviation, and the mean.
    """

    def __init__(self, inputs: Sequence[upstream.Tensor], epsilon: float) -> None:
        x, scale, *bias = inputs
        super().__init__(list(inputs), name="layer_norm" if bias else "rms_norm")
        self._epsilon = epsilon
        # Only `rsqrt` rounds the elements of an incomplete SIMD vector differently.
        self.signature = Signature(combined=scale.shape.dims, any_slice=True, cost="norm")
        statistics = [(x.shape - scale.shape, wide_dtype(x))] * (1 + len(bias))
        self.set_outputs(x, *statistics)

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        name = "rms_norm_grad" if len(self.outputs) == 2 else "layer_norm_grad"
        inputs = [*self.inputs, *self.outputs[1:], grad_ys[0]]
        return NormGradOperation(
            name, self, inputs, *self.inputs, summed=DROPPED, any_slice=False
        ).outputs

    def lower(self, lowering: Lowering) -> None:
        whole, dims = self.inputs[0], self.inputs[1].shape.dims
        x, scale, *bias = _broadcastable(lowering, self.inputs, whole)
        if bias:
            mean, variance = _moments(lowering, whole, x)
            inverse = self._inverse(lowering, variance)
            y = (x - mean) * inverse * scale + bias[0]
            statistics = [inverse, mean]
        else:
            (mean_square,) = _means(lowering, whole, dims, tf.square(x))
            inverse = self._inverse(lowering, mean_square)
            y = x * inverse * scale
            statistics = [inverse]
        lowering.set_slice(self.outputs[0], tf.cast(y, self.outputs[0].dtype))
        for output, value in zip(self.outputs[1:], statistics, strict=True):
            lowering.set_slice(output, tf.squeeze(value, _axes(whole, dims)))

    def _inverse(self, lowering: Lowering, square: tf.Tensor) -> tf.Tensor:
        """Returns 1 / the root; with `exact_sums`, computes whole SIMD vectors."""
        if not lowering.mesh_impl(self).layout.exact_sums:
            return tf.math.rsqrt(square + self._epsilon)
        count = math.prod(square.shape)
        root = tf.math.rsqrt(in_vectors(tf.reshape(square, [-1])) + self._epsilon)
        return tf.reshape(root[:count], square.shape)


class NormGradOperation(GradientOperation):
    """Computes the gradient of layer norm or RMS norm.

    Inputs: the norm's inputs and statistics, and dy. Outputs: the gradients w.r.t. the norm's
      inputs.
    """

    def lower(self, lowering: Lowering) -> None:
        whole, dims = self.inputs[0], self.inputs[1].shape.dims
        slices = _broadcastable(lowering, self.inputs, whole)
        x, scale, dy = *slices[:2], slices[-1]
        inverse, *mean = slices[len(self.outputs) : -1]
        normed = (x - mean[0] if mean else x) * inverse
        scaled = dy * scale
        if mean:
            mean_scaled, projection = _means(lowering, whole, dims, scaled, scaled * normed)
            dx = inverse * (scaled - mean_scaled - normed * projection)
        else:
            (projection,) = _means(lowering, whole, dims, scaled * normed)
            dx = inverse * (scaled - normed * projection)
        lowering.set_slice(self.outputs[0], tf.cast(dx, self.outputs[0].dtype))
        set_vector_gradients(lowering, self, [dy * normed, dy] if mean else [dy * normed])


def _moments(
    lowering: Lowering, tensor: upstream.Tensor, x: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes mean and variance [..., 1] over the last dimension, from the slice `x`."""
    mean = reduce_mean(x, -1, keepdims=True)
    variance = reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
    mesh_impl = lowering.mesh_impl(tensor)
    axes = mesh_impl.axes_of(tensor.shape.dims[-1:])
    return combined_moments(mesh_impl.collectives, axes, [(mean, variance)])


def _means(
    lowering: Lowering,
    tensor: upstream.Tensor,
    dims: Sequence[upstream.Dimension],
    *parts: tf.Tensor,
) -> list[tf.Tensor]:
    """Computes means over `dims`, with at most one collective; `dims` remain, with size 1.

    `parts` are slices of tensors that have the shape of `tensor`.
    """
    mesh_impl = lowering.mesh_impl(tensor)
    split = [mesh_impl.tensor_dimension_to_mesh_axis(dim) for dim in dims]
    mesh_axes = [axis for axis in split if axis is not None]
    count = math.prod(dim.size for dim in dims)
    sums = [reduce_sum(part, _axes(tensor, dims), keepdims=True) for part in parts]
    if not mesh_axes:
        return [total / count for total in sums]
    totals = mesh_impl.collectives.allreduce(tf.stack(sums), mesh_axes, "Add")
    return tf.unstack(totals / count)


def _axes(tensor: upstream.Tensor, dims: Sequence[upstream.Dimension]) -> list[int]:
    """Returns the indices of dimensions of `tensor`."""
    return [tensor.shape.dims.index(dim) for dim in dims]


def _broadcastable(
    lowering: Lowering, tensors: Sequence[upstream.Tensor], whole: upstream.Tensor
) -> list[tf.Tensor]:
    """Returns slices, at least in float32, that broadcast with the slice of `whole`."""
    dtype = wide_dtype(whole)
    return [tf.cast(expanded(lowering.slice(x), x.shape, whole.shape), dtype) for x in tensors]
