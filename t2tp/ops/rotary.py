"""Rotary positions: queries and keys turned by angles that grow with their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


@dataclass(frozen=True)
class RotaryScaling:
    """Slower turns for texts longer than those first trained on, as Llama 3.1 has them.

    A pair that turns at least `high_freq_factor` times in `original_length` positions tells
    neighbours apart and stays as it is; one that turns at most `low_freq_factor` times is slowed
    down by `factor`; between the two the speed goes from one to the other in proportion to the
    number of turns.

    Attributes:
      factor: how many times longer texts may be.
      low_freq_factor: turns.
      high_freq_factor: turns; more than `low_freq_factor`.
      original_length: positions.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
          ValueError: the factors of the frequencies are in the wrong order.
        """
        if not self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rotary_low_freq_factor is {self.low_freq_factor}, and must be below"
                f" rotary_high_freq_factor, which is {self.high_freq_factor}."
            )

    def __call__(self, turns: np.ndarray) -> np.ndarray:
        """The angles by which pairs turn from one position to the next, slowed down."""
        times = turns * (self.original_length / (2 * np.pi))
        span = self.high_freq_factor - self.low_freq_factor
        kept = np.clip((times - self.low_freq_factor) / span, 0.0, 1.0)
        return turns * (kept + (1.0 - kept) / self.factor)


def rotary(
    x: mtf.Tensor,
    positions: mtf.Tensor,
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
) -> mtf.Tensor:
    """`x`, turned in the plane of each pair of its last dimension.

    J. Su et al., "RoFormer" (arXiv:2104.09864), section 3.2. Pair i of d / 2 is turned by `position
    * base ** (-2 * i / d)`, so that the product of a query and a key depends on how far apart they
    are. A pair is the elements i and i + d / 2, as in Llama. Computed in float32.

    Args:
      x: [..., d]; d is even and cannot be split.
      positions: integers, of some of the other dimensions of `x`.
      base: the slowest pair turns once in about 2 pi times so many positions.
      scaling: slows pairs down; by default none.

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
    half = dim.size // 2
    turns = np.power(base, -np.arange(half) / half)
    turns = (turns if scaling is None else scaling(turns)).astype(np.float32)
    return RotaryOperation(x, positions, turns, backward=False).outputs[0]


class RotaryOperation(mtf.Operation):
    """Inputs x [..., d] and positions; output like x. Pair i turns by `turns[i]` a position,
    `backward` the other way."""

    def __init__(
        self, x: mtf.Tensor, positions: mtf.Tensor, turns: np.ndarray, backward: bool
    ) -> None:
        super().__init__([x, positions], name="rotary")
        self._turns = turns
        self._backward = backward
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable", [x.shape.dims[-1].name])
        )

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        turned_back = RotaryOperation(
            grad_ys[0], self.inputs[1], self._turns, backward=not self._backward
        )
        return [turned_back.outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        (x, positions), shape = self.inputs, self.inputs[0].shape
        place = mtf.ops._expand_dims(lowering.slice(positions), positions.shape, shape)
        angle = tf.cast(place, tf.float32) * self._turns
        cos, sin = tf.cos(angle), tf.sin(angle)
        if self._backward:
            sin = -sin
        one, other = tf.split(tf.cast(lowering.slice(x), tf.float32), 2, axis=-1)
        turned = tf.concat([one * cos - other * sin, other * cos + one * sin], axis=-1)
        lowering.set_slice(self.outputs[0], tf.cast(turned, x.dtype))
