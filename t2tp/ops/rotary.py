"""Rotary positions: queries and keys turned by angles that grow with their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def rotary(x: mtf.Tensor, positions: mtf.Tensor, base: float = 10000.0) -> mtf.Tensor:
    """`x`, turned in the plane of each pair of its last dimension.

    J. Su et al., "RoFormer" (arXiv:2104.09864), section 3.2. Pair i of d / 2 is turned by `position
    * base ** (-2 * i / d)`, so that the product of a query and a key depends on how far apart they
    are. A pair is the elements i and i + d / 2, as in Llama. Computed in float32.

    Args:
      x: [..., d]; d is even and cannot be split.
      positions: integers, of some of the other dimensions of `x`.
      base: the slowest pair turns once in about 2 pi times so many positions.

    Returns:
      like `x`.

    Raises:
      ValueError: d is odd, or `positions` are no integers or have other dimensions.
    """
    *others, dim = x.shape.dims
    if dim.size % 2:
        raise ValueError(f"rotary turns pairs: the size of {dim} must be even.")
    if not positions.dtype.is_integer or any(d not in others for d in positions.shape.dims):
        raise ValueError(
            f"rotary: positions must be integers whose dimensions are among {others}, not"
            f" {positions.dtype.name} {positions.shape}."
        )
    return RotaryOperation(x, positions, base, backward=False).outputs[0]


class RotaryOperation(mtf.Operation):
    """Inputs x [..., d] and positions; output like x. `backward` turns the other way."""

    def __init__(self, x: mtf.Tensor, positions: mtf.Tensor, base: float, backward: bool) -> None:
        super().__init__([x, positions], name="rotary")
        self._base = base
        self._backward = backward
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable", [x.shape.dims[-1].name])
        )

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        turned_back = RotaryOperation(
            grad_ys[0], self.inputs[1], self._base, backward=not self._backward
        )
        return [turned_back.outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        (x, positions), shape = self.inputs, self.inputs[0].shape
        half = shape.dims[-1].size // 2
        turns = np.power(self._base, -np.arange(half) / half).astype(np.float32)
        place = mtf.ops._expand_dims(lowering.slice(positions), positions.shape, shape)
        angle = tf.cast(place, tf.float32) * turns
        cos, sin = tf.cos(angle), tf.sin(angle)
        if self._backward:
            sin = -sin
        one, other = tf.split(tf.cast(lowering.slice(x), tf.float32), 2, axis=-1)
        turned = tf.concat([one * cos - other * sin, other * cos + one * sin], axis=-1)
        lowering.set_slice(self.outputs[0], tf.cast(turned, x.dtype))
