"""Softmax and its kin, computed in float32 or, of float64, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.ops.cast import at_least_float32, cast

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def softmax(
    x: mtf.Tensor,
    reduced_dim: mtf.Dimension,
    extra_logit: mtf.Tensor | float | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """Exponentials that sum up to 1 along `reduced_dim`, which may be split.

    Args:
      x: [..., reduced_dim, ...], any float dtype.
      reduced_dim: a dimension of `x`.
      extra_logit: a logit whose exponential counts in the sum, and is not in the result.
      name: of the operation.
    """
    reduced_dim = mtf.convert_to_dimension(reduced_dim)
    if extra_logit is None:
        return SoftmaxOperation(x, reduced_dim, name).outputs[0]
    y = mtf.softmax(_wide(x), reduced_dim, extra_logit=_wide(extra_logit), name=name)
    return cast(y, x.dtype)


def log_softmax(
    x: mtf.Tensor,
    reduced_dim: mtf.Dimension,
    extra_logit: mtf.Tensor | float | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The logarithm of `softmax`, with its arguments."""
    y = mtf.log_softmax(_wide(x), reduced_dim, extra_logit=_wide(extra_logit), name=name)
    return cast(y, x.dtype)


def reduce_logsumexp(
    x: mtf.Tensor,
    reduced_dim: mtf.Dimension,
    extra_logit: mtf.Tensor | float | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The logarithm of the sum of exponentials along `reduced_dim`; arguments as for `softmax`."""
    y = mtf.reduce_logsumexp(_wide(x), reduced_dim, extra_logit=_wide(extra_logit), name=name)
    return cast(y, x.dtype)


class SoftmaxOperation(mtf.Operation):
    """Input x [..., dim, ...]; output of its shape and dtype."""

    def __init__(self, x: mtf.Tensor, dim: mtf.Dimension, name: str | None) -> None:
        super().__init__([x], name=name or "softmax")
        if dim not in x.shape.dims:
            raise ValueError(f"softmax along {dim}, which is no dimension of {x}.")
        self._dim = dim
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor]:
        return SoftmaxGradOperation(self.outputs[0], grad_ys[0], self._dim).outputs

    def lower(self, lowering: Lowering) -> None:
        (x,), (y,) = self.inputs, self.outputs
        logits = tf.cast(lowering.slice(x), _wide_dtype(x))
        place, axes = _place(lowering, x, self._dim)
        if axes:
            allreduce = lowering.mesh_impl(self).collectives.allreduce
            highest = allreduce(tf.reduce_max(logits, place, keepdims=True), axes, "Max")
            exponentials = tf.exp(logits - highest)
            total = allreduce(tf.reduce_sum(exponentials, place, keepdims=True), axes, "Add")
            value = exponentials / total
        else:
            value = _softmax(logits, place)
        lowering.set_slice(y, tf.cast(value, y.dtype))


class SoftmaxGradOperation(mtf.Operation):
    """Inputs the softmax y and the gradient by it; output the gradient by x."""

    def __init__(self, y: mtf.Tensor, dy: mtf.Tensor, dim: mtf.Dimension) -> None:
        super().__init__([y, dy], name="softmax_grad")
        self._dim = dim
        self._outputs = [mtf.Tensor(self, y.shape, y.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor]:
        dtype = _wide_dtype(self.inputs[0])
        y, dy, ddx = (cast(tensor, dtype) for tensor in (*self.inputs, grad_ys[0]))
        mean = mtf.reduce_sum(y * dy, reduced_dim=self._dim)
        second_mean = mtf.reduce_sum(y * ddx, reduced_dim=self._dim)
        by_y = ddx * (dy - mean) - second_mean * dy
        by_dy = y * (ddx - second_mean)
        return [cast(by_y, self.inputs[0].dtype), cast(by_dy, self.inputs[1].dtype)]

    def lower(self, lowering: Lowering) -> None:
        dtype = _wide_dtype(self.inputs[0])
        y, dy = (tf.cast(lowering.slice(tensor), dtype) for tensor in self.inputs)
        place, axes = _place(lowering, self.inputs[0], self._dim)
        mean = tf.reduce_sum(y * dy, place, keepdims=True)
        mean = lowering.mesh_impl(self).collectives.allreduce(mean, axes, "Add")
        lowering.set_slice(self.outputs[0], tf.cast(y * (dy - mean), self.outputs[0].dtype))


def _softmax(logits: tf.Tensor, place: int) -> tf.Tensor:
    """Along one dimension; TensorFlow's kernel for CPUs takes five dimensions at most."""
    shape = logits.shape.as_list()
    last = place == len(shape) - 1
    flat = tf.reshape(
        logits,
        [-1, shape[place]] if last else [-1, shape[place], math.prod(shape[place + 1 :])],
    )
    return tf.reshape(tf.nn.softmax(flat, axis=1), shape)


def _place(lowering: Lowering, x: mtf.Tensor, dim: mtf.Dimension) -> tuple[int, list[int]]:
    """Where a dimension is in a tensor, and the mesh axes that split it."""
    axis = lowering.mesh_impl(x).tensor_dimension_to_mesh_axis(dim)
    return x.shape.dims.index(dim), [] if axis is None else [axis]


def _wide_dtype(x: mtf.Tensor) -> tf.DType:
    """What is computed in."""
    return tf.float64 if x.dtype == tf.float64 else tf.float32


def _wide(x: mtf.Tensor | float | None) -> mtf.Tensor | float | None:
    return at_least_float32(x) if isinstance(x, mtf.Tensor) else x
