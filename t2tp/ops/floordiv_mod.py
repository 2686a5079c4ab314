"""Integer division and its remainder, with the gradients that mesh-tensorflow lacks."""

from collections.abc import Callable

import tensorflow as tf

from t2tp import upstream


def floordiv(
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None = None,
) -> upstream.Tensor:
    """Computes `floor(x1 / x2)`, element-wise; the gradients are 0.

    Args:
      x1: a tensor, or a number.
      x2: a tensor of the same dtype, or a number; one of the two is a tensor.
      output_shape: order of the result's dimensions; by default as for a sum of the two.
    """
    return _binary(FloorDivOperation, tf.math.floordiv, x1, x2, output_shape, "floordiv")


def mod(
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None = None,
) -> upstream.Tensor:
    """Computes `x1 - x2 * floordiv(x1, x2)`, element-wise; arguments as for `floordiv`."""
    return _binary(ModOperation, tf.math.floormod, x1, x2, output_shape, "mod")


class FloorDivOperation(upstream.BinaryOpWithBroadcasting):
    """Inputs: x1 and x2. Output: with the dimensions of both."""

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        return [None, None]


class ModOperation(upstream.BinaryOpWithBroadcasting):
    """Inputs: x1 and x2. Output: with the dimensions of both."""

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        (x1, x2), (dy,) = self.inputs, grad_ys
        times = floordiv(x1, x2, dy.shape)
        return [
            upstream.reduce_sum(dy, output_shape=x1.shape),
            upstream.reduce_sum(-dy * times, output_shape=x2.shape),
        ]


def _binary(
    kind: type[upstream.BinaryOpWithBroadcasting],
    fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None,
    name: str,
) -> upstream.Tensor:
    x1, x2 = upstream.ops.binary_arguments_to_tensors(x1, x2)
    shape = upstream.ops._infer_binary_broadcast_shape(x1.shape, x2.shape, output_shape)
    return kind(fn, x1, x2, shape, x1.dtype, name=name).outputs[0]
