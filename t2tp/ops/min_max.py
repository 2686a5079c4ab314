"""Max and min. Tied elements share the gradient.

mesh-tensorflow gives the full gradient to each tied element, so that the sum of the gradients grows
with the number of ties.
"""

from collections.abc import Callable

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream
from t2tp.lowering.operation import Operation
from t2tp.ops.cast import cast


def reduce_max(
    x: upstream.Tensor,
    disable_positional_args: None = None,
    output_shape: upstream.Shape | None = None,
    reduced_dim: upstream.Dimension | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the max along some dimensions; tied elements share the gradient equally.

    Args:
      x: any dtype that can be compared.
      disable_positional_args: must be None; pass the rest by name.
      output_shape: the dimensions to keep; or
      reduced_dim: the dimension to reduce. By default all.
      name: operation name.

    Raises:
      ValueError: `output_shape` and `reduced_dim` contradict each other, or `x` lacks them.
    """
    return _reduce(x, disable_positional_args, output_shape, reduced_dim, "MAX", name)


def reduce_min(
    x: upstream.Tensor,
    disable_positional_args: None = None,
    output_shape: upstream.Shape | None = None,
    reduced_dim: upstream.Dimension | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the min along some dimensions; see `reduce_max`."""
    return _reduce(x, disable_positional_args, output_shape, reduced_dim, "MIN", name)


def maximum(
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the larger of two, element-wise; equal elements get half of the gradient each.

    Args:
      x1: a tensor, or a number.
      x2: a tensor of the same dtype, or a number; one of the two is a tensor.
      output_shape: order of the result's dimensions.
      name: name of the TensorFlow operations.
    """
    return _binary(x1, x2, output_shape, name, "maximum", tf.maximum)


def minimum(
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the smaller of two, element-wise; see `maximum`."""
    return _binary(x1, x2, output_shape, name, "minimum", tf.minimum)


class ReduceExtremumOperation(Operation, upstream.ReduceOperation):
    """Max or min along some dimensions."""

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        x, y = self.inputs[0], self.outputs[0]
        # Counts above 256 are not exact in bfloat16.
        dtype = tf.float32 if x.dtype.size < 4 else x.dtype
        ties = cast(upstream.equal(x, y), dtype)
        share = cast(grad_ys[0], dtype) / upstream.reduce_sum(ties, output_shape=y.shape)
        return [cast(upstream.multiply(ties, share, output_shape=x.shape), x.dtype)]


class ExtremumOperation(Operation, upstream.MinMaxOperation):
    """The larger or smaller of two, element-wise."""

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        dy, y = grad_ys[0], self.outputs[0]
        is_y = [cast(upstream.equal(x, y), dy.dtype) for x in self.inputs]
        share = dy / (is_y[0] + is_y[1])
        return [
            upstream.einsum([share, is_extremum], output_shape=x.shape)
            for x, is_extremum in zip(self.inputs, is_y, strict=True)
        ]


def _reduce(
    x: upstream.Tensor,
    disable_positional_args: None,
    output_shape: upstream.Shape | None,
    reduced_dim: upstream.Dimension | None,
    kind: str,
    name: str | None,
) -> upstream.Tensor:
    if disable_positional_args is not None:
        raise ValueError(
            "Say reduce_max(x, reduced_dim=...) or reduce_max(x, output_shape=...): after x,"
            " arguments are given by name."
        )
    output_shape = upstream.ops._reduction_output_shape(
        x, upstream.convert_to_shape(output_shape), upstream.convert_to_dimension(reduced_dim)
    )
    if output_shape == x.shape:
        return x
    name = name or f"reduce_{kind.lower()}"
    return ReduceExtremumOperation(x, output_shape, kind, name=name).outputs[0]


def _binary(
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None,
    name: str | None,
    default_name: str,
    tf_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> upstream.Tensor:
    with tf1.name_scope(name, default_name=default_name):
        x1, x2 = upstream.ops.binary_arguments_to_tensors(x1, x2)
        shape = upstream.ops._infer_binary_broadcast_shape(x1.shape, x2.shape, output_shape)
        return ExtremumOperation(tf_fn, x1, x2, shape, name=default_name).outputs[0]
