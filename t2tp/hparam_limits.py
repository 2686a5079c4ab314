"""Limits of a hyperparameter: a range of numbers, or choices."""

import dataclasses
import math
from typing import Any

from t2tp.suggestions import nearest

# Max magnitudes of values without a `max`. The devices compute with steps and sizes in int64, and
# with other numbers in float32, and neither may overflow.
_LARGEST = {int: 10**12, float: 1e38}


@dataclasses.dataclass(frozen=True)
class Limits:
    """The allowed values of a hyperparameter, or of each element of a list.

    Attributes:
      above: an exclusive lower bound, in place of `min`.
      below: an exclusive upper bound, in place of `max`.
      choices: the allowed values, in place of bounds.
    """

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None

    def __str__(self) -> str:
        """Describes the limits, as in "at least 0 and below 1"; empty if there are none."""
        if self.choices is not None:
            return f"one of {', '.join(map(str, self.choices))}"
        bounds = {
            "at least": self.min,
            "above": self.above,
            "at most": self.max,
            "below": self.below,
        }
        # An infinite `max` only lifts the default of `_LARGEST`; see `check`.
        given = {word: n for word, n in bounds.items() if n not in (None, math.inf)}
        return " and ".join(f"{word} {n:,}" for word, n in given.items())

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError if the value is not within the limits."""
        for each in value if isinstance(value, list) else [value]:
            if each is not None and not self._allows(each):
                raise ValueError(self._refusal(name, value, each))
            largest = _LARGEST.get(type(each))
            if self.max is None and largest is not None and abs(each) > largest:
                raise ValueError(f"{name} is {value!r}, and must be at most {largest:,}")

    def _allows(self, value: Any) -> bool:
        if self.choices is not None:
            return value in self.choices
        return (
            (self.min is None or value >= self.min)
            and (self.max is None or value <= self.max)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def _refusal(self, name: str, value: Any, wrong: Any) -> str:
        if self.choices is None or not isinstance(wrong, str):
            return f"{name} is {value!r}, and must be {self}"
        verb = "has" if isinstance(value, list) else "is"
        return f"{name} {verb} {wrong!r}: {nearest(wrong, self.choices, 'choices')}"
