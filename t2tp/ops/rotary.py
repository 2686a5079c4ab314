"""Rotary position embeddings."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import Signature
from t2tp.lowering.slice_shapes import expanded


@dataclass(frozen=True)
class RotaryScaling:
    """Makes the rotation slower, for sequences longer than in pretraining.

    A pair of elements that rotates by `f` radians per position rotates by `share * f + (1 - share)
    * f / scaling_factor` instead. The kind determines the share:

    - `linear`: 0 for all pairs.
    - `llama3` (Llama 3.1): it depends on the number of turns that the pair makes in
      `original_length` positions. It is 0 up to `low_freq_factor` turns, 1 from `high_freq_factor`
      turns on, and linear in the number of turns between the two bounds.
    - `yarn` (B. Peng et al., arXiv:2309.00071, section 3.2): 0 and 1 as in `llama3`, but linear in
      the pair's index between the two bounds. The indices at the bounds are rounded, the lower
      index down and the higher one up. Rotated elements are also multiplied by `amplitude`.
    - `yarn_unrounded` (gpt-oss): like `yarn`, without rounding.

    Attributes:
      scaling_factor: divisor of the frequencies, such as 8 for sequences 8 times longer than in
        pretraining.
      low_freq_factor: number of turns up to which the share is 0.
      high_freq_factor: number of turns from which the share is 1; above `low_freq_factor`.
      original_length: sequence length in pretraining, in positions.
      scaling: the kind, `linear`, `llama3`, `yarn` or `yarn_unrounded`.
      attention_factor: the amplitude of `yarn`; 0: `1 + 0.1 * ln(scaling_factor)`.
    """

    scaling_factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192
    scaling: str = "llama3"
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
        """The factor by which rotated elements are multiplied."""
        if not self.scaling.startswith("yarn"):
            return 1.0
        return self.attention_factor or 1.0 + 0.1 * math.log(max(self.scaling_factor, 1.0))

    def __call__(self, turns: np.ndarray, base: float = 10000.0) -> np.ndarray:
        """Returns scaled angles.

        `turns` has the angle by which each pair turns per position, in radians, computed with
        `base`.
        """
        share = 0.0 if self.scaling == "linear" else self._share(turns, base)
        return (1 - share) * turns / self.scaling_factor + share * turns

    def _share(self, turns: np.ndarray, base: float) -> np.ndarray:
        if self.scaling == "llama3":
            times = self.original_length / (2 * np.pi / turns)
            span = self.high_freq_factor - self.low_freq_factor
            return np.clip((times - self.low_freq_factor) / span, 0.0, 1.0)
        first = self._pair(self.high_freq_factor, len(turns), base)
        last = self._pair(self.low_freq_factor, len(turns), base)
        if self.scaling == "yarn":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(turns) - 1)
        return 1.0 - np.clip((np.arange(len(turns)) - first) / ((last - first) or 0.001), 0.0, 1.0)

    def _pair(self, count: float, pairs: int, base: float) -> float:
        """Returns the (fractional) index of the pair with `count` turns in `original_length`."""
        return pairs * math.log(self.original_length / (count * 2 * math.pi)) / math.log(base)


def turns_of(size: int, base: float, scaling: RotaryScaling | None = None) -> np.ndarray:
    """Returns each pair's angle per position for `size` elements, in radians, float32.

    Exponent, power and reciprocal are each rounded to float32, as in Hugging Face, so that
    pretrained models see the angles of their training. An error in the last bit of an angle per
    position is an error of 0.0005 radians at position 8000.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    # On some CPUs the last bit of NumPy's float32 power is wrong in a fifth of the cases.
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
    """Rotates pairs of elements of `x` by angles proportional to the position, in float32.

    J. Su et al., "RoFormer" (arXiv:2104.09864), section 3.2. Pair i consists of the elements i and
    i + d / 2, as in Llama. Its angle is `position * base ** (-2 * i / d)` radians.

    Args:
      x: [..., d]; d is even and cannot be split.
      positions: integers. Their dimensions are among the other dimensions of `x`.
      base: the slowest pair turns once in about `2 pi * base` positions.
      scaling: lowers frequencies; default: none.
      fraction: fraction of the elements to rotate. If it is below 1, only the first `fraction * d`
        elements are rotated, and d in the formulas above is their number.

    Returns:
      a tensor like `x`.

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
    return RotaryOperation(x, positions, turns, amplitude).outputs[0]


class RotaryOperation(Operation):
    """Rotates pairs of elements by an angle proportional to the position.

    Inputs: x [..., d] and positions. Output: like x. Pair i is rotated by `turns[i]` radians per
      position and multiplied by `amplitude`. Elements after the pairs are copied.
    """

    def __init__(
        self, x: upstream.Tensor, positions: upstream.Tensor, turns: np.ndarray, amplitude: float
    ) -> None:
        super().__init__([x, positions], name="rotary")
        self._turns = turns
        self._amplitude = amplitude
        self.signature = Signature(whole=x.shape.dims[-1:])
        self.set_outputs(x)

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        positions = self.inputs[1]
        back = RotaryOperation(grad_ys[0], positions, -self._turns, self._amplitude)
        return [back.outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        (x, positions), shape = self.inputs, self.inputs[0].shape
        position = lowering.slice(positions)
        # All layers use the same angles.
        places = tuple(dim if dim in positions.shape.dims else None for dim in shape.dims)
        key = (position.ref(), places, self._turns.tobytes(), self._amplitude)
        cos, sin = lowering.shared(
            ("rotary", *key), lambda: self._cos_and_sin(expanded(position, positions.shape, shape))
        )
        pairs, beyond = len(self._turns), x.shape.dims[-1].size - 2 * len(self._turns)
        wide = tf.cast(lowering.slice(x), tf.float32)
        one, other, *rest = tf.split(wide, [pairs, pairs, *([beyond] if beyond else [])], axis=-1)
        turned = (tf.concat([one, other], -1) if rest else wide) * cos
        turned += tf.concat([other, one], -1) * sin
        turned = tf.concat([turned, *rest], -1) if rest else turned
        lowering.set_slice(self.outputs[0], tf.cast(turned, x.dtype))

    def _cos_and_sin(self, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the factors of x, and of x with the elements of each pair exchanged."""
        angle = tf.cast(position, tf.float32) * self._turns
        cos, sin = self._amplitude * tf.cos(angle), self._amplitude * tf.sin(angle)
        return tf.concat([cos, cos], -1), tf.concat([-sin, sin], -1)
