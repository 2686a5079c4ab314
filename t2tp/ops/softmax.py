"""Softmax and related functions, computed in at least float32."""

import math

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import Signature
from t2tp.lowering.staged_sums import reduce_sum
from t2tp.ops.cast import at_least_float32, cast, wide_dtype


def softmax(
    x: upstream.Tensor,
    reduced_dim: upstream.Dimension,
    extra_logit: upstream.Tensor | float | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the softmax along `reduced_dim`, which may be split.

    Args:
      x: [..., reduced_dim, ...], any float dtype.
      reduced_dim: a dimension of `x`.
      extra_logit: a logit that is included in the sum, but not in the result.
      name: operation name.
    """
    reduced_dim = upstream.convert_to_dimension(reduced_dim)
    if extra_logit is None:
        return SoftmaxOperation(x, reduced_dim, name).outputs[0]
    with tf1.variable_scope(name, default_name="softmax"):
        y = upstream.exp(log_softmax(_wide(x), reduced_dim, _wide(extra_logit)))
    return cast(y, x.dtype)


def log_softmax(
    x: upstream.Tensor,
    reduced_dim: upstream.Dimension,
    extra_logit: upstream.Tensor | float | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the logarithm of `softmax`, with the same arguments."""
    x_wide = _wide(x)
    return cast(x_wide - _logsumexp(x_wide, reduced_dim, _wide(extra_logit), name), x.dtype)


def reduce_logsumexp(
    x: upstream.Tensor,
    reduced_dim: upstream.Dimension,
    extra_logit: upstream.Tensor | float | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the log of the sum of exponentials along `reduced_dim`; arguments as for `softmax`.

    If all elements are -inf, the result is -inf and the gradients are 0.
    """
    return cast(_logsumexp(_wide(x), reduced_dim, _wide(extra_logit), name), x.dtype)


class SoftmaxOperation(Operation):
    """Input: x [..., dim, ...]. Output: like x."""

    def __init__(self, x: upstream.Tensor, dim: upstream.Dimension, name: str | None) -> None:
        super().__init__([x], name=name or "softmax")
        if dim not in x.shape.dims:
            raise ValueError(f"softmax along {dim}, which is no dimension of {x}.")
        self._dim = dim
        self.signature = Signature(combined=[dim], pads=True, cost="softmax")
        self.set_outputs(x)

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        (y,) = self.outputs
        return SoftmaxGradOperation("softmax_grad", self, [y, grad_ys[0]], y).outputs

    def lower(self, lowering: Lowering) -> None:
        (x,), (y,) = self.inputs, self.outputs
        logits = tf.cast(lowering.slice(x), wide_dtype(x))
        axis, mesh_impl = x.shape.dims.index(self._dim), lowering.mesh_impl(self)
        if mesh_axes := mesh_impl.axes_of([self._dim]):
            allreduce = mesh_impl.collectives.allreduce
            logits = mesh_impl.masked(logits, x.shape, [self._dim], logits.dtype.min)
            highest = allreduce(tf.reduce_max(logits, axis, keepdims=True), mesh_axes, "Max")
            exponentials = tf.exp(logits - highest)
            total = allreduce(reduce_sum(exponentials, axis, keepdims=True), mesh_axes, "Add")
            value = exponentials / total
        else:
            value = _softmax(logits, axis)
        lowering.set_slice(y, tf.cast(value, y.dtype))


class SoftmaxGradOperation(GradientOperation):
    """Inputs: y = softmax(x), dy. Output: dx."""

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        dtype = wide_dtype(self.inputs[0])
        y, dy, ddx = (cast(tensor, dtype) for tensor in (*self.inputs, grad_ys[0]))
        dim = self.forward._dim
        mean = upstream.reduce_sum(y * dy, reduced_dim=dim)
        second_mean = upstream.reduce_sum(y * ddx, reduced_dim=dim)
        by_y = ddx * (dy - mean) - second_mean * dy
        by_dy = y * (ddx - second_mean)
        return [cast(by_y, self.inputs[0].dtype), cast(by_dy, self.inputs[1].dtype)]

    def lower(self, lowering: Lowering) -> None:
        shape, dim, dtype = self.inputs[0].shape, self.forward._dim, wide_dtype(self.inputs[0])
        y, dy = (tf.cast(lowering.slice(tensor), dtype) for tensor in self.inputs)
        mesh_impl, axis = lowering.mesh_impl(self), shape.dims.index(dim)
        mesh_axes = mesh_impl.axes_of([dim])
        products = mesh_impl.masked(y * dy, shape, [dim])
        mean = reduce_sum(products, axis, keepdims=True)
        mean = mesh_impl.collectives.allreduce(mean, mesh_axes, "Add")
        lowering.set_slice(self.outputs[0], tf.cast(y * (dy - mean), self.outputs[0].dtype))


def _logsumexp(
    x: upstream.Tensor,
    dim: upstream.Dimension,
    extra_logit: upstream.Tensor | float | None,
    name: str | None,
) -> upstream.Tensor:
    """Computes log(sum(exp(x))) in float32 or float64."""
    dim = upstream.convert_to_dimension(dim)
    with tf1.variable_scope(name, default_name="reduce_logsumexp"):
        shape = x.shape - dim
        highest = upstream.reduce_max(upstream.stop_gradient(x), output_shape=shape)
        if extra_logit is not None:
            if isinstance(extra_logit, upstream.Tensor):
                extra_logit = upstream.stop_gradient(extra_logit)
            highest = upstream.maximum(highest, extra_logit)
        # An infinite max is not subtracted: inf - inf is NaN.
        highest = upstream.cwise(_zero_if_infinite, [highest], grad_function=0)
        total = upstream.reduce_sum(upstream.exp(x - highest), output_shape=shape)
        if extra_logit is not None:
            total += upstream.exp(extra_logit - highest)
        return upstream.cwise(tf.math.log, [total], grad_function=_log_gradient) + highest


def _zero_if_infinite(x: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_inf(x), tf.zeros_like(x), x)


def _log_gradient(op: upstream.Operation, dy: upstream.Tensor) -> list[upstream.Tensor]:
    """Computes `dy / total`, or `dy` if the total is 0.

    If the total is 0, all exponentials are 0, so the gradient w.r.t. the logits is 0 anyway.
    """
    (total,) = op.inputs
    is_zero = cast(upstream.equal(total, 0.0), total.dtype)
    return [dy / (total + is_zero)]


def _softmax(logits: tf.Tensor, axis: int) -> tf.Tensor:
    """Computes the softmax along one dimension. TensorFlow's CPU kernel supports at most rank 5."""
    shape = logits.shape.as_list()
    if shape[axis] == 1:  # The kernel rounds reciprocals, and would return 0.9999999.
        return tf.exp(logits - logits)
    last = axis == len(shape) - 1
    flat = tf.reshape(
        logits, [-1, shape[axis]] if last else [-1, shape[axis], math.prod(shape[axis + 1 :])]
    )
    return tf.reshape(tf.nn.softmax(flat, axis=1), shape)


def _wide(x: upstream.Tensor | float | None) -> upstream.Tensor | float | None:
    return at_least_float32(x) if isinstance(x, upstream.Tensor) else x
