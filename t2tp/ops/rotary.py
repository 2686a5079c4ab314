"""Rotary position embeddings."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.slice_shapes import expanded


@dataclass(frozen=True)
class RotaryScaling:
    """Lower frequencies for sequences longer than in the first training.

    The frequency of a pair becomes `share * f + (1 - share) * f / factor`, by kind:

    - `linear`: the share is 0.
    - `llama3` (Llama 3.1): it is 1 from `high_freq_factor` turns in `original_length` positions on,
      0 up to `low_freq_factor` turns, and linear in the number of turns between them.
    - `yarn` (B. Peng et al., arXiv:2309.00071, section 3.2): the same bounds, and linear in the
      pair's number between them, each rounded to a pair. Rotated elements are then multiplied by
      `amplitude`.
    - `yarn_unrounded` (gpt-oss): the same, without rounding.

    Attributes:
      factor: how many times longer sequences may be.
      low_freq_factor: bound in turns.
      high_freq_factor: bound in turns, above `low_freq_factor`.
      original_length: length of the first training, in positions.
      kind: `linear`, `llama3`, `yarn` or `yarn_unrounded`.
      attention_factor: the amplitude of `yarn`; 0: `1 + 0.1 * ln(factor)`.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192
    kind: str = "llama3"
    attention_factor: float = 0.0

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

    @property
    def amplitude(self) -> float:
        """The factor of rotated elements."""
        if not self.kind.startswith("yarn"):
            return 1.0
        return self.attention_factor or 1.0 + 0.1 * math.log(max(self.factor, 1.0))

    def __call__(self, turns: np.ndarray, base: float = 10000.0) -> np.ndarray:
        """Returns the scaled angles by which pairs turn per position."""
        share = 0.0 if self.kind == "linear" else self._share(turns, base)
        return (1 - share) * turns / self.factor + share * turns

    def _share(self, turns: np.ndarray, base: float) -> np.ndarray:
        if self.kind == "llama3":
            times = self.original_length / (2 * np.pi / turns)
            span = self.high_freq_factor - self.low_freq_factor
            return np.clip((times - self.low_freq_factor) / span, 0.0, 1.0)
        first = self._pair(self.high_freq_factor, len(turns), base)
        last = self._pair(self.low_freq_factor, len(turns), base)
        if self.kind == "yarn":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(turns) - 1)
        return 1.0 - np.clip((np.arange(len(turns)) - first) / max(last - first, 0.001), 0.0, 1.0)

    def _pair(self, count: float, pairs: int, base: float) -> float:
        """Returns the number of the pair that turns `count` times in `original_length`."""
        return pairs * math.log(self.original_length / (count * 2 * math.pi)) / math.log(base)


def turns_of(size: int, base: float, scaling: RotaryScaling | None = None) -> np.ndarray:
    """Returns the angle by which each pair of `size` elements turns per position, in float32.

    It is rounded where the models that others trained round it: an error in the last bit of an
    angle per position is one of 0.0005 at position 8000.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    # NumPy's float32 powers are off in the last bit, in a fifth of the cases on some processors.
    powers = np.power(np.float64(base), exponents.astype(np.float64)).astype(np.float32)
    turns = np.float32(1) / powers
    return turns if scaling is None else scaling(turns, base).astype(np.float32)


def rotary(
    x: upstream.Tensor,
    positions: upstream.Tensor,
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
    fraction: float = 1.0,
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
      fraction: the fraction of the elements to rotate, the first ones; d is their number.

    Returns:
      like `x`.

    Raises:
      ValueError: d is odd, or `positions` are not integers or have other dimensions.
    """
    *others, dim = x.shape.dims
    size = int(dim.size * fraction)
    if size % 2 or not size:
        part = "" if fraction == 1 else f"{fraction} of "
        raise ValueError(f"rotary turns pairs: {part}the size of {dim} must be even.")
    if not positions.dtype.is_integer or any(d not in others for d in positions.shape.dims):
        raise ValueError(
            f"rotary: positions must be integers whose dimensions are among {others}, not"
            f" {positions.dtype.name} {positions.shape}."
        )
    turns = turns_of(size, base, scaling)
    amplitude = 1.0 if scaling is None else scaling.amplitude
    return RotaryOperation(x, positions, turns, amplitude, backward=False).outputs[0]


class RotaryOperation(Operation):
    """Rotates pairs of elements by an angle proportional to the position.

    Inputs: x [..., d] and positions. Output: like x. Pair i is rotated by `turns[i]` per position,
      `backward` in the opposite direction, and multiplied by `amplitude`. Elements beyond the pairs
      stay as they are.
    """

    def __init__(
        self,
        x: upstream.Tensor,
        positions: upstream.Tensor,
        turns: np.ndarray,
        amplitude: float,
        backward: bool,
    ) -> None:
        super().__init__([x, positions], name="rotary")
        self._turns = turns
        self._amplitude = amplitude
        self._backward = backward
        self._outputs = [upstream.Tensor(self, x.shape, x.dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable", [x.shape.dims[-1].name])
        )
        self.ordered_dims = x.shape.dims[-1:]

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        turned_back = RotaryOperation(
            grad_ys[0], self.inputs[1], self._turns, self._amplitude, not self._backward
        )
        return [turned_back.outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        (x, positions), shape = self.inputs, self.inputs[0].shape
        position = expanded(lowering.slice(positions), positions.shape, shape)
        angle = tf.cast(position, tf.float32) * self._turns
        cos, sin = tf.cos(angle), tf.sin(angle)
        if self._amplitude != 1:
            cos, sin = self._amplitude * cos, self._amplitude * sin
        if self._backward:
            sin = -sin
        pairs, beyond = len(self._turns), x.shape.dims[-1].size - 2 * len(self._turns)
        wide = tf.cast(lowering.slice(x), tf.float32)
        one, other, *rest = tf.split(wide, [pairs, pairs, *([beyond] if beyond else [])], axis=-1)
        turned = tf.concat([one * cos - other * sin, other * cos + one * sin, *rest], axis=-1)
        lowering.set_slice(self.outputs[0], tf.cast(turned, x.dtype))
