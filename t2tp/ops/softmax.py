"""Softmax and its kin, computed in float32 or, of float64, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream as mtf
from t2tp.mesh.sums import reduce_sum
from t2tp.ops.cast import at_least_float32, cast, wide_dtype

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
    with tf1.variable_scope(name, default_name="softmax"):
        y = mtf.exp(log_softmax(_wide(x), reduced_dim, _wide(extra_logit)))
    return cast(y, x.dtype)


def log_softmax(
    x: mtf.Tensor,
    reduced_dim: mtf.Dimension,
    extra_logit: mtf.Tensor | float | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The logarithm of `softmax`, with its arguments."""
    x_wide = _wide(x)
    return cast(x_wide - _logsumexp(x_wide, reduced_dim, _wide(extra_logit), name), x.dtype)


def reduce_logsumexp(
    x: mtf.Tensor,
    reduced_dim: mtf.Dimension,
    extra_logit: mtf.Tensor | float | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The logarithm of the sum of exponentials along `reduced_dim`; arguments as for `softmax`.

    Where all are -inf the result is, and the gradients are 0.
    """
    return cast(_logsumexp(_wide(x), reduced_dim, _wide(extra_logit), name), x.dtype)


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
        logits = tf.cast(lowering.slice(x), wide_dtype(x))
        place, axes = _place(lowering, x, self._dim)
        if axes:
            allreduce = lowering.mesh_impl(self).collectives.allreduce
            highest = allreduce(tf.reduce_max(logits, place, keepdims=True), axes, "Max")
            exponentials = tf.exp(logits - highest)
            total = allreduce(reduce_sum(exponentials, place, keepdims=True), axes, "Add")
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
        dtype = wide_dtype(self.inputs[0])
        y, dy, ddx = (cast(tensor, dtype) for tensor in (*self.inputs, grad_ys[0]))
        mean = mtf.reduce_sum(y * dy, reduced_dim=self._dim)
        second_mean = mtf.reduce_sum(y * ddx, reduced_dim=self._dim)
        by_y = ddx * (dy - mean) - second_mean * dy
        by_dy = y * (ddx - second_mean)
        return [cast(by_y, self.inputs[0].dtype), cast(by_dy, self.inputs[1].dtype)]

    def lower(self, lowering: Lowering) -> None:
        dtype = wide_dtype(self.inputs[0])
        y, dy = (tf.cast(lowering.slice(tensor), dtype) for tensor in self.inputs)
        place, axes = _place(lowering, self.inputs[0], self._dim)
        mean = reduce_sum(y * dy, place, keepdims=True)
        mean = lowering.mesh_impl(self).collectives.allreduce(mean, axes, "Add")
        lowering.set_slice(self.outputs[0], tf.cast(y * (dy - mean), self.outputs[0].dtype))


def _logsumexp(
    x: mtf.Tensor,
    dim: mtf.Dimension,
    extra_logit: mtf.Tensor | float | None,
    name: str | None,
) -> mtf.Tensor:
    """Of `x` in float32 or float64."""
    dim = mtf.convert_to_dimension(dim)
    with tf1.variable_scope(name, default_name="reduce_logsumexp"):
        shape = x.shape - dim
        highest = mtf.reduce_max(mtf.stop_gradient(x), output_shape=shape)
        if extra_logit is not None:
            if isinstance(extra_logit, mtf.Tensor):
                extra_logit = mtf.stop_gradient(extra_logit)
            highest = mtf.maximum(highest, extra_logit)
        # Of an infinite one nothing is subtracted: inf - inf would be no number.
        highest = mtf.cwise(_zero_if_infinite, [highest], grad_function=0)
        total = mtf.reduce_sum(mtf.exp(x - highest), output_shape=shape)
        if extra_logit is not None:
            total += mtf.exp(extra_logit - highest)
        return mtf.cwise(tf.math.log, [total], grad_function=_log_gradient) + highest


def _zero_if_infinite(x: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_inf(x), tf.zeros_like(x), x)


def _log_gradient(op: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
    """0 times anything finite is 0: exponentials that are all 0 then have no gradient."""
    (total,) = op.inputs
    is_zero = mtf.cast(mtf.equal(total, 0.0), total.dtype)
    return [dy / (total + is_zero)]


def _softmax(logits: tf.Tensor, place: int) -> tf.Tensor:
    """Along one dimension; TensorFlow's kernel for CPUs takes five dimensions at most."""
    shape = logits.shape.as_list()
    if shape[place] == 1:  # The kernel's reciprocals are rounded: it gives 0.9999999.
        return tf.exp(logits - logits)
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


def _wide(x: mtf.Tensor | float | None) -> mtf.Tensor | float | None:
    return at_least_float32(x) if isinstance(x, mtf.Tensor) else x
