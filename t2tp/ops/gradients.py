"""The gradients that mesh-tensorflow's operations lack or compute wrongly, set on its classes.

- Tied elements of a max or min share the gradient. In mesh-tensorflow each of them has the full
  gradient, so that the sum of the gradients grows with the number of ties.
- `floordiv` and `mod` have gradients.
- Some outputs of an operation may be unused. mesh-tensorflow expects a gradient w.r.t. each output.
- The inputs of a function with a custom gradient are in the order of their use. mesh-tensorflow
  keeps them in a set, whose order differs between processes. Gradients that share a collective
  would then get each other's values, because each process traces the program by itself.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream
from t2tp.ops.cast import cast

Gradients: TypeAlias = list[Any]

_init = upstream.CustomGradientOperation.__init__
_of_sum = upstream.ReduceOperation.gradient
_of_other_binary = upstream.ops.BinaryOpWithBroadcasting.gradient


def _of_reduction(op: Any, grad_ys: Gradients) -> Gradients:
    if op._reduction_fn_string == "SUM":
        return _of_sum(op, grad_ys)
    x, y = op.inputs[0], op.outputs[0]
    # Counts above 256 are not exact in bfloat16.
    dtype = tf.float32 if x.dtype.size < 4 else x.dtype
    ties = upstream.cast(upstream.equal(x, y), dtype)
    share = cast(grad_ys[0], dtype) / upstream.reduce_sum(ties, output_shape=y.shape)
    return [cast(upstream.multiply(ties, share, output_shape=x.shape), x.dtype)]


def _of_min_max(op: Any, grad_ys: Gradients) -> Gradients:
    (dy,), y = grad_ys, op.outputs[0]
    is_y = [upstream.cast(upstream.equal(x, y), dy.dtype) for x in op.inputs]
    share = dy / (is_y[0] + is_y[1])
    return [
        upstream.einsum([share, is_extremum], output_shape=x.shape)
        for x, is_extremum in zip(op.inputs, is_y, strict=True)
    ]


def _of_binary(op: Any, grad_ys: Gradients) -> Gradients:
    (x1, x2), (dy,) = op.inputs, grad_ys
    if op._tf_fn is tf1.floordiv:
        return [None, None]
    if op._tf_fn is not tf1.mod:
        return _of_other_binary(op, grad_ys)
    times = upstream.floordiv(x1, x2, dy.shape)
    return [
        upstream.reduce_sum(dy, output_shape=x1.shape),
        upstream.reduce_sum(-dy * times, output_shape=x2.shape),
    ]


def _with_zeros(gradient: Callable[[Any, Gradients], Gradients]) -> Any:
    """Returns a gradient that gets zeros for unused outputs."""

    def of_all_outputs(op: Any, grad_ys: Gradients) -> Gradients:
        pairs = zip(op.outputs, grad_ys, strict=True)
        return gradient(op, [upstream.zeros_like(y) if dy is None else dy for y, dy in pairs])

    return of_all_outputs


def _init_in_order(op: Any, given: Any, inputs: Any, outputs: Any, fn: Any, forward: Any) -> None:
    others = {*inputs[len(given) :]}
    read = dict.fromkeys(x for each in forward for x in each.inputs)
    _init(op, given, [*given, *(x for x in read if x in others)], outputs, fn, forward)


upstream.CustomGradientOperation.__init__ = _init_in_order
upstream.ReduceOperation.gradient = _of_reduction
upstream.MinMaxOperation.gradient = _of_min_max
upstream.ops.BinaryOpWithBroadcasting.gradient = _of_binary
for _kind in (upstream.UnstackOperation, upstream.SlicewiseOperation):
    _kind.gradient = _with_zeros(_kind.gradient)
