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
    return _operation(FloorDivOperation, x1, x2, output_shape)


def mod(
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None = None,
) -> upstream.Tensor:
    """Computes `x1 - x2 * floordiv(x1, x2)`, element-wise; arguments as for `floordiv`."""
    return _operation(ModOperation, x1, x2, output_shape)


class FloorDivOperation(upstream.BinaryOpWithBroadcasting):
    """Inputs: x1 and x2. Output: with the dimensions of both."""

    def __init__(
        self, x1: upstream.Tensor, x2: upstream.Tensor, output_shape: upstream.Shape
    ) -> None:
        super().__init__(tf.math.floordiv, x1, x2, output_shape, x1.dtype, name="floordiv")

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        return [None, None]


class ModOperation(upstream.BinaryOpWithBroadcasting):
    """Inputs: x1 and x2. Output: with the dimensions of both."""

    def __init__(
        self, x1: upstream.Tensor, x2: upstream.Tensor, output_shape: upstream.Shape
    ) -> None:
        super().__init__(tf.math.floormod, x1, x2, output_shape, x1.dtype, name="mod")

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        (x1, x2), (dy,) = self.inputs, grad_ys
        times = floordiv(x1, x2, dy.shape)
        return [
            upstream.reduce_sum(dy, output_shape=x1.shape),
            upstream.reduce_sum(-dy * times, output_shape=x2.shape),
        ]


def _operation(
    kind: Callable[[upstream.Tensor, upstream.Tensor, upstream.Shape], upstream.Operation],
    x1: upstream.Tensor | float,
    x2: upstream.Tensor | float,
    output_shape: upstream.Shape | None,
) -> upstream.Tensor:
    x1, x2 = upstream.ops.binary_arguments_to_tensors(x1, x2)
    shape = upstream.ops._infer_binary_broadcast_shape(x1.shape, x2.shape, output_shape)
    return kind(x1, x2, shape).outputs[0]
