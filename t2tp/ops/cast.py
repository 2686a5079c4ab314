"""Conversion to another dtype."""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation, signature_of
from t2tp.lowering.signature import Signature


def cast(x: upstream.Tensor, dtype: tf.DType, name: str = "cast") -> upstream.Tensor:
    """Converts `x` to another dtype; returns `x` itself if it already has this dtype.

    If `x` is a partial sum that is not all-reduced yet, it is reduced in the wider of the two
    floating-point dtypes. For example, a bfloat16 gradient that is cast to float32 is all-reduced
    in float32.
    """
    dtype = tf.as_dtype(dtype)
    return x if dtype == x.dtype else CastOperation(x, dtype, name).outputs[0]


def at_least_float32(x: upstream.Tensor) -> upstream.Tensor:
    """Converts `x` to float32 if its dtype has 16 bits."""
    return cast(x, tf.float32) if x.dtype in (tf.bfloat16, tf.float16) else x


def wide_dtype(x: upstream.Tensor | tf.Tensor) -> tf.DType:
    """Returns the dtype to compute in: float64 for float64, otherwise float32."""
    return tf.float64 if x.dtype == tf.float64 else tf.float32


class CastOperation(Operation):
    """Input: x. Output: x in another dtype."""

    def __init__(self, x: upstream.Tensor, dtype: tf.DType, name: str) -> None:
        super().__init__([x], name=name)
        both_float = x.dtype.is_floating and dtype.is_floating
        widens = both_float and dtype.size > x.dtype.size
        self.signature = Signature(linear=widens, any_slice=True)
        self.set_outputs((x.shape, dtype))

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        return [cast(grad_ys[0], self.inputs[0].dtype)]

    def lower(self, lowering: Lowering) -> None:
        (x,), (y,) = self.inputs, self.outputs
        if signature_of(self).linear and x not in lowering.needed:
            part, axes = lowering.partial_sum(x)
            lowering.set_sum_over_axes(y, tf.cast(part, y.dtype), axes)
        else:
            lowering.set_slice(y, tf.cast(lowering.slice(x), y.dtype))
