"""Division to a whole number and its remainder, with the gradients that mesh-tensorflow has not."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from t2tp import upstream as mtf


def floordiv(
    x1: mtf.Tensor | float, x2: mtf.Tensor | float, output_shape: mtf.Shape | None = None
) -> mtf.Tensor:
    """The largest whole number not above `x1 / x2`, element by element; its gradients are 0.

    Args:
      x1: a tensor, or a number.
      x2: a tensor of the same dtype, or a number; one of the two is a tensor.
      output_shape: order of the result's dimensions; by default as for a sum of the two.
    """
    return _operation(FloorDivOperation, x1, x2, output_shape)


def mod(
    x1: mtf.Tensor | float, x2: mtf.Tensor | float, output_shape: mtf.Shape | None = None
) -> mtf.Tensor:
    """`x1 - x2 * floordiv(x1, x2)`, element by element; arguments as for `floordiv`."""
    return _operation(ModOperation, x1, x2, output_shape)


class FloorDivOperation(mtf.BinaryOpWithBroadcasting):
    """Inputs x1 and x2; the output has the dimensions of both."""

    def __init__(self, x1: mtf.Tensor, x2: mtf.Tensor, output_shape: mtf.Shape) -> None:
        super().__init__(tf.math.floordiv, x1, x2, output_shape, x1.dtype, name="floordiv")

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        return [None, None]


class ModOperation(mtf.BinaryOpWithBroadcasting):
    """Inputs x1 and x2; the output has the dimensions of both."""

    def __init__(self, x1: mtf.Tensor, x2: mtf.Tensor, output_shape: mtf.Shape) -> None:
        super().__init__(tf.math.floormod, x1, x2, output_shape, x1.dtype, name="mod")

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        (x1, x2), (dy,) = self.inputs, grad_ys
        times = floordiv(x1, x2, dy.shape)
        return [
            mtf.reduce_sum(dy, output_shape=x1.shape),
            mtf.reduce_sum(-dy * times, output_shape=x2.shape),
        ]


def _operation(
    kind: Callable[[mtf.Tensor, mtf.Tensor, mtf.Shape], mtf.Operation],
    x1: mtf.Tensor | float,
    x2: mtf.Tensor | float,
    output_shape: mtf.Shape | None,
) -> mtf.Tensor:
    x1, x2 = mtf.ops.binary_arguments_to_tensors(x1, x2)
    shape = mtf.ops._infer_binary_broadcast_shape(x1.shape, x2.shape, output_shape)
    return kind(x1, x2, shape).outputs[0]
