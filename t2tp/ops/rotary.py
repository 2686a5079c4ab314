"""Rotary position embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.slice_shapes import expanded


@dataclass(frozen=True)
class RotaryScaling:
    """Lower frequencies for sequences longer than in the first training, as in Llama 3.1.

    A pair that turns at least `high_freq_factor` times in `original_length` positions encodes short
    distances and is unchanged; one that turns at most `low_freq_factor` times is slowed down by
    `factor`; between them the frequency is interpolated linearly in the number of turns.

    Attributes:
      factor: how many times longer sequences may be.
      low_freq_factor: bound in turns.
      high_freq_factor: bound in turns, above `low_freq_factor`.
      original_length: length of the first training, in positions.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        """Checks the factors.

        Raises:
          ValueError: `low_freq_factor` is not below `high_freq_factor`.
        """
        if not self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rotary_low_freq_factor is {self.low_freq_factor}, and must be below"
                f" rotary_high_freq_factor, which is {self.high_freq_factor}."
            )

    def __call__(self, turns: np.ndarray) -> np.ndarray:
        """Returns the scaled angles by which pairs turn per position."""
        times = self.original_length / (2 * np.pi / turns)
        span = self.high_freq_factor - self.low_freq_factor
        ramp = np.clip((times - self.low_freq_factor) / span, 0.0, 1.0)
        return (1 - ramp) * turns / self.factor + ramp * turns


def turns_of(size: int, base: float, scaling: RotaryScaling | None = None) -> np.ndarray:
    """Returns the angle by which each pair of `size` elements turns per position, in float32.

    It is rounded where the models that others trained round it: an error in the last bit of an
    angle per position is one of 0.0005 at position 8000.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    # NumPy's float32 powers are off in the last bit, in a fifth of the cases on some processors.
    powers = np.power(np.float64(base), exponents.astype(np.float64)).astype(np.float32)
    turns = np.float32(1) / powers
    return turns if scaling is None else scaling(turns).astype(np.float32)


def rotary(
    x: upstream.Tensor,
    positions: upstream.Tensor,
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
) -> upstream.Tensor:
    """Rotates each pair of elements of the last dimension of `x`.

    J. Su et al., "RoFormer" (arXiv:2104.09864), section 3.2. Pair i of d / 2 is rotated by
    `position * base ** (-2 * i / d)`, so that the product of a query and a key depends on their
    distance. A pair is the elements i and i + d / 2, as in Llama. Computed in float32.

    Args:
      x: [..., d]; d is even and cannot be split.
      positions: integers, of some of the other dimensions of `x`.
      base: the slowest pair turns once in about `2 pi * base` positions.
      scaling: lowers frequencies; default: none.

    Returns:
      like `x`.

    Raises:
      ValueError: d is odd, or `positions` are not integers or have other dimensions.
    """
    *others, dim = x.shape.dims
    if dim.size % 2:
        raise ValueError(f"rotary turns pairs: the size of {dim} must be even.")
    if not positions.dtype.is_integer or any(d not in others for d in positions.shape.dims):
        raise ValueError(
            f"rotary: positions must be integers whose dimensions are among {others}, not"
            f" {positions.dtype.name} {positions.shape}."
        )
    turns = turns_of(dim.size, base, scaling)
    return RotaryOperation(x, positions, turns, backward=False).outputs[0]


class RotaryOperation(Operation):
    """Rotates pairs of elements by an angle proportional to the position.

    Inputs: x [..., d] and positions. Output: like x. Pair i is rotated by `turns[i]` per position,
      `backward` in the opposite direction.
    """

    def __init__(
        self, x: upstream.Tensor, positions: upstream.Tensor, turns: np.ndarray, backward: bool
    ) -> None:
        super().__init__([x, positions], name="rotary")
        self._turns = turns
        self._backward = backward
        self._outputs = [upstream.Tensor(self, x.shape, x.dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable", [x.shape.dims[-1].name])
        )
        self.ordered_dims = x.shape.dims[-1:]

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        turned_back = RotaryOperation(
            grad_ys[0], self.inputs[1], self._turns, backward=not self._backward
        )
        return [turned_back.outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        (x, positions), shape = self.inputs, self.inputs[0].shape
        position = expanded(lowering.slice(positions), positions.shape, shape)
        angle = tf.cast(position, tf.float32) * self._turns
        cos, sin = tf.cos(angle), tf.sin(angle)
        if self._backward:
            sin = -sin
        one, other = tf.split(tf.cast(lowering.slice(x), tf.float32), 2, axis=-1)
        turned = tf.concat([one * cos - other * sin, other * cos + one * sin], axis=-1)
        lowering.set_slice(self.outputs[0], tf.cast(turned, x.dtype))
