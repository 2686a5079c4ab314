"""Ranges of hyperparameters. A search draws its trials from them.

@registry.register_ranged_hparams
def my_range(ranged):
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_categorical("optimizer", ["adam", "sgd"])
    ranged.set_float("optimizer_momentum", 0.8, 0.99, when={"optimizer": ["sgd"]})

registry.ranged_hparams("my_range").sample_trial(trial=3)  # always the same values
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from t2tp.hparam import HParams
from t2tp.suggestions import check_known

LINEAR, LOG, REVERSE_LOG = "linear", "log", "reverse_log"

# Maps other hyperparameters to the values that satisfy the condition.
Condition = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Choice:
    """A hyperparameter that takes one of several values with equal probability.

    Attributes:
      values: the possible values, at least one.
      when: the condition under which it is drawn; empty: always.
    """

    name: str
    values: Sequence[Any]
    when: Condition = field(default_factory=dict)

    def at(self, fraction: float) -> Any:
        """Returns the value at the index `fraction * len(values)`, rounded down."""
        return self.values[int(fraction * len(self.values))]

    def grid(self, points: int) -> Sequence[Any]:
        """Returns all values, whatever `points` is."""
        return self.values


@dataclass(frozen=True)
class Interval:
    """A number in [low, high].

    Attributes:
      scale: LINEAR, LOG, or REVERSE_LOG.
      when: the condition under which it is drawn; empty: always.
    """

    name: str
    low: float
    high: float
    scale: str
    is_int: bool
    when: Condition = field(default_factory=dict)

    def at(self, fraction: float) -> float:
        """Returns the value at a fraction of the way from `low` to `high`, on the scale."""
        if not self.is_int:
            return min(self.high, max(self.low, _at(fraction, self.low, self.high, self.scale)))
        # Without the + 1, floor would never return `high`.
        return min(self.high, math.floor(_at(fraction, self.low, self.high + 1, self.scale)))

    def grid(self, points: int) -> Sequence[float]:
        """Returns different values at equal distances on the scale, from `low` to `high`."""
        fractions = [i / (points - 1) for i in range(points)] if points > 1 else [0.5]
        exact = [_at(fraction, self.low, self.high, self.scale) for fraction in fractions]
        inside = [min(self.high, max(self.low, value)) for value in exact]
        return list(dict.fromkeys(map(round, inside) if self.is_int else inside))


class RangedHParams:
    """Ranges of hyperparameters, from which trials are drawn.

    A value depends only on the names of the set and of the hyperparameter, and on the trial's
    index. So adding a range changes no other value.

    A range may have a condition, such as `when={"optimizer": ["sgd"]}`. It is then drawn only in
    trials in which `optimizer` was drawn and is "sgd". In other trials its hyperparameter keeps the
    value of the hparams set.
    """

    LINEAR_SCALE: ClassVar[str] = LINEAR
    LOG_SCALE: ClassVar[str] = LOG  # as likely between 1 and 10 as between 10 and 100
    REVERSE_LOG_SCALE: ClassVar[str] = REVERSE_LOG  # mirrors LOG: denser towards the maximum

    def __init__(self, name: str):
        self.name = name
        self._ranges: dict[str, Choice | Interval] = {}

    @property
    def ranges(self) -> Sequence[Choice | Interval]:
        """The ranges, in the order in which they were added."""
        return list(self._ranges.values())

    def set_categorical(
        self, name: str, categories: Sequence[Any], when: Condition | None = None
    ) -> None:
        """Adds a hyperparameter that takes one of several values with equal probability.

        Raises:
          ValueError: there are no values, the hyperparameter already has a range, or the condition
            does not name values of an earlier choice.
        """
        self._add(Choice(name, list(categories), when or {}))

    # In tensor2tensor, `set_discrete` is the method for values that are numbers.
    set_discrete = set_categorical

    def set_float(
        self,
        name: str,
        min_val: float,
        max_val: float,
        scale: str = LINEAR,
        when: Condition | None = None,
    ) -> None:
        """Adds a hyperparameter in [min_val, max_val].

        Raises:
          ValueError: the bounds are in the wrong order, or not above 0 on a logarithmic scale, or
            the range or condition is wrong as in `set_categorical`.
        """
        self._add(Interval(name, min_val, max_val, scale, False, when or {}))

    def set_int(
        self,
        name: str,
        min_val: int,
        max_val: int,
        scale: str = LINEAR,
        when: Condition | None = None,
    ) -> None:
        """Adds an integer hyperparameter in [min_val, max_val]; see `set_float`."""
        self._add(Interval(name, min_val, max_val, scale, True, when or {}))

    def draw(self, value_of: Callable[[Choice | Interval], Any]) -> dict[str, Any]:
        """Returns the values of a trial, drawn by `value_of` in the order of the ranges."""
        values: dict[str, Any] = {}
        for each in self._ranges.values():
            if _holds(each.when, values):
                values[each.name] = value_of(each)
        return values

    def sample_trial(self, trial: int) -> dict[str, Any]:
        """Returns the values of a trial by name; `trial` is its index, from 0.

        Raises:
          ValueError: the index is negative.
        """
        if trial < 0:
            raise ValueError(f"trial {trial}: trials are counted from 0")
        return self.draw(
            lambda each: each.at(random.Random(f"{self.name}/{each.name}/{trial}").random())
        )

    def grid(self, points: int) -> list[dict[str, Any]]:
        """Returns the values at each point of a grid over all ranges.

        An interval contributes `points` values, a choice all its values.
        """
        found: list[dict[str, Any]] = [{}]
        for each in self._ranges.values():
            found = [
                {**values, **more}
                for values in found
                for more in (
                    [{each.name: value} for value in each.grid(points)]
                    if _holds(each.when, values)
                    else [{}]
                )
            ]
        return found

    def apply(self, trial: int, hparams: HParams) -> dict[str, Any]:
        """Sets the values of a trial and returns them by name.

        Raises:
          ValueError: a hyperparameter is not declared, or a value has another type or is out of
            range. Nothing is set then.
        """
        self.check_declared(hparams)
        sampled = self.sample_trial(trial)
        tried = hparams.copy()
        try:
            for name, value in sampled.items():
                tried.set(name, value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the ranged set {self.name}: {error}") from error
        values = {name: tried.get(name) for name in sampled}
        for name, value in values.items():
            hparams.set(name, value)
        return values

    def check_declared(self, hparams: HParams) -> None:
        """Raises ValueError if the hparams lack a hyperparameter that has a range."""
        for name in self._ranges:
            sentence = f"the ranged set {self.name} samples {name}, which the hparams do not have"
            check_known(name, hparams.values(), "hyperparameters", sentence)

    def _add(self, new: Choice | Interval) -> None:
        if new.name in self._ranges:
            raise ValueError(f"the ranged set {self.name} has two ranges of {new.name}")
        _check(new)
        for parent, values in new.when.items():
            self._check_condition(new.name, parent, values)
        self._ranges[new.name] = new

    def _check_condition(self, name: str, parent: str, values: Sequence[Any]) -> None:
        """Raises ValueError unless `parent` is an earlier choice with all of these `values`."""
        choices = {n: each for n, each in self._ranges.items() if isinstance(each, Choice)}
        sentence = f"{name} depends on {parent}, which is no choice before it"
        check_known(parent, choices, "choices before it", sentence)
        for value in values:
            if value not in choices[parent].values:
                known = ", ".join(map(repr, choices[parent].values))
                raise ValueError(f"{name} depends on {parent}={value!r}, which is not in: {known}")


def _holds(condition: Condition, values: Mapping[str, Any]) -> bool:
    return all(name in values and values[name] in wanted for name, wanted in condition.items())


def _check(new: Choice | Interval) -> None:
    name = new.name
    if isinstance(new, Choice):
        if not new.values:
            raise ValueError(f"the range of {name} is empty")
        return
    scales = (LINEAR, LOG, REVERSE_LOG)
    check_known(new.scale, scales, "scales", f"the scale of {name} is {new.scale!r}")
    if new.low > new.high:
        raise ValueError(f"the range of {name} is empty: from {new.low} to {new.high}")
    if new.scale != LINEAR and new.low <= 0:
        raise ValueError(
            f"the range of {name} begins at {new.low}; on a logarithmic scale it must be above 0"
        )


def _at(fraction: float, low: float, high: float, scale: str) -> float:
    """Returns the point at a fraction of the way from `low` to `high`."""
    if scale == LINEAR:
        return low + fraction * (high - low)
    point = math.exp(math.log(low) + fraction * (math.log(high) - math.log(low)))
    return point if scale == LOG else low + high - point
