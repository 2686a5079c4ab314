"""Dropout. The backward pass reuses the mask; recomputation generates the same mask again."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.lowering.slice_shapes import expanded


def dropout(
    x: upstream.Tensor,
    is_training: bool,
    keep_prob: float | None = None,
    rate: float | None = None,
    noise_shape: upstream.Shape | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Sets random elements to 0, and scales the others by `1 / keep_prob`, except integers.

    N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (JMLR
    15, 2014). The mask depends on the seed, the name, the step and the element's index in the
    global tensor. Random numbers are float32 for every dtype.

    Args:
      x: any dtype.
      is_training: whether to drop elements; if False, `x` is returned.
      keep_prob: the fraction to keep, in (0, 1]; or
      rate: the fraction to drop.
      noise_shape: dimensions of `x` along which the mask varies; all by default.
      name: variable scope.

    Raises:
      ValueError: not exactly one of `keep_prob` and `rate` is given, or it is out of range in
        training, or `noise_shape` has a dimension that `x` lacks.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError(
            f"dropout: give exactly one of keep_prob and rate, not {keep_prob} and {rate}."
        )
    keep = 1.0 - rate if keep_prob is None else keep_prob  # type: ignore[operator]  # one is given
    if is_training and not 0.0 < keep <= 1.0:
        raise ValueError(f"dropout: the part to keep must be in (0, 1], not {keep}.")
    noise_shape = x.shape if noise_shape is None else upstream.convert_to_shape(noise_shape)
    strange = [d for d in noise_shape.dims if d not in x.shape.dims]
    if strange:
        raise ValueError(f"dropout: noise_shape {noise_shape} has {strange}, and {x} has not.")
    with tf1.variable_scope(name, default_name="dropout"):
        if keep == 1.0 or not is_training:
            return x
        return DropoutOperation(x, keep, noise_shape).outputs[0]


def scaled(x: tf.Tensor, scale: float) -> tf.Tensor:
    """Multiplies in float32 and rounds once.

    In 16 bits the scale itself would be rounded, and all elements would have the same bias. For
    example, 1 / 0.9 is 1.109375 in bfloat16, and the mean of the result would be 0.16 % too small.
    """
    return x * scale if x.dtype.size >= 4 else tf.cast(tf.cast(x, tf.float32) * scale, x.dtype)


class DropoutOperation(Operation):
    """Input: x. Output: like x."""

    signature = Signature(ordered=ALL, pads=True, cost="random")
    chooses_orders = True

    def __init__(
        self,
        x: upstream.Tensor,
        keep_prob: float,
        noise_shape: upstream.Shape,
        rng_name: str | None = None,
    ) -> None:
        """Drops at random, with the mask of the operation named `rng_name` if given."""
        super().__init__([x], name="dropout")
        self._keep_prob = keep_prob
        self._noise_shape = noise_shape
        self._rng_name = rng_name or self.name
        self._outputs = [upstream.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        backward = DropoutOperation(
            grad_ys[0], self._keep_prob, self._noise_shape, rng_name=self._rng_name
        )
        backward.rng_dependency = self.rng_dependency
        return backward.outputs

    def lower(self, lowering: Lowering) -> None:
        x = self.inputs[0]
        order = lowering.orders.of(x)
        mask = lowering.random_mask(self._rng_name, self._noise_shape, self._keep_prob, order)
        is_kept = expanded(mask, self._noise_shape, x.shape)
        value = lowering.slice_in_order(x, order)
        if x.dtype.is_floating:
            value = scaled(value, 1.0 / self._keep_prob)
        lowering.set_slice(self.outputs[0], tf.where(is_kept, value, tf.zeros([], x.dtype)))
        lowering.orders.set(self.outputs[0], order)
