"""Largest and smallest, with gradients that ties share.

mesh-tensorflow gives the whole gradient to each of the elements that tie, so that it grows with
their number.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream as mtf


def reduce_max(
    x: mtf.Tensor,
    disable_positional_args: None = None,
    output_shape: mtf.Shape | None = None,
    reduced_dim: mtf.Dimension | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The largest element along some dimensions; the gradient is shared equally by those that tie.

    Args:
      x: any dtype that can be compared.
      disable_positional_args: leave it None; what follows is given by name.
      output_shape: the dimensions that stay; or
      reduced_dim: the one that goes. Without either, all go.
      name: of the operation.

    Raises:
      ValueError: `output_shape` and `reduced_dim` contradict each other, or `x` lacks them.
    """
    return _reduce(x, disable_positional_args, output_shape, reduced_dim, "MAX", name)


def reduce_min(
    x: mtf.Tensor,
    disable_positional_args: None = None,
    output_shape: mtf.Shape | None = None,
    reduced_dim: mtf.Dimension | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The smallest element along some dimensions; as `reduce_max`."""
    return _reduce(x, disable_positional_args, output_shape, reduced_dim, "MIN", name)


def maximum(
    x1: mtf.Tensor | float,
    x2: mtf.Tensor | float,
    output_shape: mtf.Shape | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The larger of two, element by element; where they tie each gets half of the gradient.

    Args:
      x1: a tensor, or a number.
      x2: a tensor of the same dtype, or a number; one of the two is a tensor.
      output_shape: order of the result's dimensions.
      name: of the TensorFlow operations.
    """
    return _binary(x1, x2, output_shape, name, "maximum", tf.maximum)


def minimum(
    x1: mtf.Tensor | float,
    x2: mtf.Tensor | float,
    output_shape: mtf.Shape | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The smaller of two, element by element; as `maximum`."""
    return _binary(x1, x2, output_shape, name, "minimum", tf.minimum)


class ReduceExtremumOperation(mtf.ReduceOperation):
    """Largest or smallest element along some dimensions."""

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
        x, y = self.inputs[0], self.outputs[0]
        # Counts above 256 are not exact in bfloat16.
        dtype = tf.float32 if x.dtype.size < 4 else x.dtype
        ties = mtf.cast(mtf.equal(x, y), dtype)
        share = mtf.cast(grad_ys[0], dtype) / mtf.reduce_sum(ties, output_shape=y.shape)
        return [mtf.cast(mtf.multiply(ties, share, output_shape=x.shape), x.dtype)]


class ExtremumOperation(mtf.MinMaxOperation):
    """Larger or smaller of two, element by element."""

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
        dy, y = grad_ys[0], self.outputs[0]
        is_y = [mtf.cast(mtf.equal(x, y), dy.dtype) for x in self.inputs]
        share = dy / (is_y[0] + is_y[1])
        return [
            mtf.einsum([share, mine], output_shape=x.shape)
            for x, mine in zip(self.inputs, is_y, strict=True)
        ]


def _reduce(
    x: mtf.Tensor,
    disable_positional_args: None,
    output_shape: mtf.Shape | None,
    reduced_dim: mtf.Dimension | None,
    kind: str,
    name: str | None,
) -> mtf.Tensor:
    if disable_positional_args is not None:
        raise ValueError(
            "Say reduce_max(x, reduced_dim=...) or reduce_max(x, output_shape=...): after x,"
            " arguments are given by name."
        )
    output_shape = mtf.ops._reduction_output_shape(
        x, mtf.convert_to_shape(output_shape), mtf.convert_to_dimension(reduced_dim)
    )
    if output_shape == x.shape:
        return x
    name = name or f"reduce_{kind.lower()}"
    return ReduceExtremumOperation(x, output_shape, kind, name=name).outputs[0]


def _binary(
    x1: mtf.Tensor | float,
    x2: mtf.Tensor | float,
    output_shape: mtf.Shape | None,
    name: str | None,
    default_name: str,
    tf_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> mtf.Tensor:
    with tf1.name_scope(name, default_name=default_name):
        x1, x2 = mtf.ops.binary_arguments_to_tensors(x1, x2)
        shape = mtf.ops._infer_binary_broadcast_shape(x1.shape, x2.shape, output_shape)
        return ExtremumOperation(tf_fn, x1, x2, shape, name=default_name).outputs[0]
