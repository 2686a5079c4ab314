"""Ranges of hyperparameters, from which trials of a search are drawn.

@registry.register_ranged_hparams
def my_range(ranged):
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_discrete("num_hidden_layers", [2, 4, 6])

registry.ranged_hparams("my_range").draw(trial=3)  # always the same values
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from t2tp.hparam import HParams
from t2tp.nearest import nearest

_LINEAR, _LOG, _REVERSE_LOG = "linear", "log", "reverse_log"


class RangedHParams:
    """Which values each of some hyperparameters may have, and how they are drawn.

    The value of a hyperparameter in a trial is a function of the set's name, the hyperparameter's
    name and the trial's number: another range added to the set changes no other value.

    Attributes:
        name: of the set.
    """

    LINEAR_SCALE: ClassVar[str] = _LINEAR
    LOG_SCALE: ClassVar[str] = _LOG  # as often between 1 and 10 as between 10 and 100
    REVERSE_LOG_SCALE: ClassVar[str] = _REVERSE_LOG  # the same, denser towards the maximum

    def __init__(self, name: str):
        """Begins with no range."""
        self.name = name
        self._draws: dict[str, Callable[[float], Any]] = {}

    def set_categorical(self, name: str, categories: Sequence[Any]) -> None:
        """One of some values, all as often.

        Raises:
            ValueError: there are none, or the hyperparameter has a range already.
        """
        self._add(name, _one_of(name, categories))

    def set_discrete(self, name: str, feasible_points: Sequence[float]) -> None:
        """One of some numbers, all as often.

        Raises:
            ValueError: there are none, or the hyperparameter has a range already.
        """
        self._add(name, _one_of(name, feasible_points))

    def set_float(self, name: str, least: float, most: float, scale: str = _LINEAR) -> None:
        """A number from `least` to `most`.

        Raises:
            ValueError: the bounds are not in this order, or not above 0 on a logarithmic scale.
        """
        _check(name, least, most, scale)
        self._add(name, lambda share: min(most, max(least, _at(share, least, most, scale))))

    def set_int(self, name: str, least: int, most: int, scale: str = _LINEAR) -> None:
        """A whole number from `least` to `most`, both included.

        Raises:
            ValueError: as `set_float`.
        """
        _check(name, least, most, scale)
        # Each number has the stretch from itself to the next.
        self._add(name, lambda share: min(most, math.floor(_at(share, least, most + 1, scale))))

    def draw(self, trial: int) -> dict[str, Any]:
        """The values of a trial, by name.

        Args:
            trial: its number, from 0.

        Raises:
            ValueError: the number is negative.
        """
        if trial < 0:
            raise ValueError(f"trial {trial}: trials are counted from 0")
        return {
            name: draw(random.Random(f"{self.name}/{name}/{trial}").random())
            for name, draw in self._draws.items()
        }

    def apply(self, trial: int, hparams: HParams) -> dict[str, Any]:
        """Sets the values of a trial, and returns them by name.

        Raises:
            ValueError: the hparams lack one, or it is of another type or out of range; then nothing
                is set.
        """
        drawn = self.draw(trial)
        for name in drawn:
            if name not in hparams:
                known = nearest(name, hparams.values(), "hyperparameters")
                raise ValueError(
                    f"the ranged set {self.name} draws {name}, which the hparams do not have:"
                    f" {known}"
                )
        tried = hparams.copy()
        for name, value in drawn.items():
            try:
                tried.set(name, value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"the ranged set {self.name}: {error}") from error
        values = {name: tried.get(name) for name in drawn}
        for name, value in values.items():
            hparams.set(name, value)
        return values

    def _add(self, name: str, draw: Callable[[float], Any]) -> None:
        if name in self._draws:
            raise ValueError(f"the ranged set {self.name} has two ranges of {name}")
        self._draws[name] = draw


def _one_of(name: str, values: Sequence[Any]) -> Callable[[float], Any]:
    if not values:
        raise ValueError(f"the range of {name} is empty")
    chosen = list(values)
    return lambda share: chosen[int(share * len(chosen))]


def _check(name: str, least: float, most: float, scale: str) -> None:
    scales = (_LINEAR, _LOG, _REVERSE_LOG)
    if scale not in scales:
        raise ValueError(f"the scale of {name} is {scale!r}: {nearest(scale, scales, 'scales')}")
    if least > most:
        raise ValueError(f"the range of {name} is empty: from {least} to {most}")
    if scale != _LINEAR and least <= 0:
        raise ValueError(
            f"the range of {name} begins at {least}, and on a logarithmic scale it must be above 0"
        )


def _at(share: float, least: float, most: float, scale: str) -> float:
    """The point at a share, 0 to 1, of the way from `least` to `most`."""
    if scale == _LINEAR:
        return least + share * (most - least)
    point = math.exp(math.log(least) + share * (math.log(most) - math.log(least)))
    return point if scale == _LOG else least + most - point
