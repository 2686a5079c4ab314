"""Dropout whose mask is not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream as mtf
from t2tp.mesh import random

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def dropout(
    x: mtf.Tensor,
    is_training: bool,
    keep_prob: float | None = None,
    rate: float | None = None,
    noise_shape: mtf.Shape | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """Sets random elements to 0, and scales the others up by `1 / keep_prob` (not integers).

    N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (JMLR
    15, 2014). The mask depends on the seed, the name, the step and the element's place in the
    global tensor; the backward pass draws it again. Decisions are made in float32 whatever the
    dtype.

    Args:
      x: any dtype.
      is_training: whether to do anything.
      keep_prob: the part to keep, in (0, 1]; or
      rate: the part to drop.
      noise_shape: dimensions of `x` along which decisions differ; by default all.
      name: of the variable scope.

    Raises:
      ValueError: not exactly one of `keep_prob` and `rate` is given, or it is out of range in
        training, or `noise_shape` has a dimension that `x` has not.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError(
            f"dropout: give exactly one of keep_prob and rate, not {keep_prob} and {rate}."
        )
    keep = 1.0 - rate if keep_prob is None else keep_prob  # type: ignore[operator]  # one is given
    if is_training and not 0.0 < keep <= 1.0:
        raise ValueError(f"dropout: the part to keep must be in (0, 1], not {keep}.")
    noise_shape = x.shape if noise_shape is None else mtf.convert_to_shape(noise_shape)
    strange = [d for d in noise_shape.dims if d not in x.shape.dims]
    if strange:
        raise ValueError(f"dropout: noise_shape {noise_shape} has {strange}, and {x} has not.")
    with tf1.variable_scope(name, default_name="dropout"):
        if keep == 1.0 or not is_training:
            return x
        return DropoutOperation(x, keep, noise_shape).outputs[0]


class DropoutOperation(mtf.Operation):
    """Input x; the output has its shape."""

    def __init__(
        self,
        x: mtf.Tensor,
        keep_prob: float,
        noise_shape: mtf.Shape,
        drawn_by: str | None = None,
    ) -> None:
        """Drops at random; with the mask of the operation named `drawn_by`, if that is given."""
        super().__init__([x], name="dropout")
        self._keep_prob = keep_prob
        self._noise_shape = noise_shape
        self._drawn_by = drawn_by or self.name
        self.draw_after: mtf.Tensor | None = None  # set when this is a recomputation
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
        backward = DropoutOperation(
            grad_ys[0], self._keep_prob, self._noise_shape, drawn_by=self._drawn_by
        )
        backward.draw_after = self.draw_after
        return backward.outputs

    def lower(self, lowering: Lowering) -> None:
        x = self.inputs[0]
        bits = lowering.random_bits(self._drawn_by, self._noise_shape)
        is_kept = mtf.ops._expand_dims(
            random.uniform(bits) < self._keep_prob, self._noise_shape, x.shape
        )
        value = lowering.slice(x)
        if x.dtype.is_floating:
            value /= tf.cast(self._keep_prob, x.dtype)
        lowering.set_slice(self.outputs[0], tf.where(is_kept, value, tf.zeros([], x.dtype)))
