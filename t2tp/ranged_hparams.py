"""Ranges of hyperparameters, from which a search samples its trials.

@registry.register_ranged_hparams
def my_range(ranged):
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_discrete("num_hidden_layers", [2, 4, 6])

registry.ranged_hparams("my_range").sample_trial(trial=3)  # always the same values
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from t2tp.hparam import HParams
from t2tp.suggestions import nearest

_LINEAR, _LOG, _REVERSE_LOG = "linear", "log", "reverse_log"


class RangedHParams:
    """Ranges of hyperparameters and how their values are sampled.

    A value depends only on the names of set and hyperparameter and on the trial's index: adding a
    range changes no other value.

    Attributes:
        name: of the set.
    """

    LINEAR_SCALE: ClassVar[str] = _LINEAR
    LOG_SCALE: ClassVar[str] = _LOG  # as likely between 1 and 10 as between 10 and 100
    REVERSE_LOG_SCALE: ClassVar[str] = _REVERSE_LOG  # the same, denser towards the maximum

    def __init__(self, name: str):
        self.name = name
        self._samplers: dict[str, Callable[[float], Any]] = {}

    def set_categorical(self, name: str, categories: Sequence[Any]) -> None:
        """Adds a hyperparameter that takes one of some values, equally likely.

        Raises:
            ValueError: there are no values, or the hyperparameter already has a range.
        """
        self._add(name, _one_of(name, categories))

    def set_discrete(self, name: str, feasible_points: Sequence[float]) -> None:
        """Adds a hyperparameter that takes one of some numbers, equally likely.

        Raises:
            ValueError: there are no values, or the hyperparameter already has a range.
        """
        self._add(name, _one_of(name, feasible_points))

    def set_float(self, name: str, min_val: float, max_val: float, scale: str = _LINEAR) -> None:
        """Adds a hyperparameter in [min_val, max_val].

        Raises:
            ValueError: the bounds are in the wrong order, or not above 0 on a logarithmic scale.
        """
        _check(name, min_val, max_val, scale)
        self._add(
            name,
            lambda fraction: min(max_val, max(min_val, _at(fraction, min_val, max_val, scale))),
        )

    def set_int(self, name: str, min_val: int, max_val: int, scale: str = _LINEAR) -> None:
        """Adds an integer hyperparameter in [min_val, max_val].

        Raises:
            ValueError: as `set_float`.
        """
        _check(name, min_val, max_val, scale)
        # Integer i has the interval [i, i + 1); otherwise max_val would have none.
        self._add(
            name,
            lambda fraction: min(max_val, math.floor(_at(fraction, min_val, max_val + 1, scale))),
        )

    def sample_trial(self, trial: int) -> dict[str, Any]:
        """Returns the values of a trial by name.

        Args:
            trial: its index, from 0.

        Raises:
            ValueError: the index is negative.
        """
        if trial < 0:
            raise ValueError(f"trial {trial}: trials are counted from 0")
        return {
            name: sample(random.Random(f"{self.name}/{name}/{trial}").random())
            for name, sample in self._samplers.items()
        }

    def apply(self, trial: int, hparams: HParams) -> dict[str, Any]:
        """Sets the values of a trial and returns them by name.

        Raises:
            ValueError: a hyperparameter is missing, of another type or out of range; then nothing
                is set.
        """
        sampled = self.sample_trial(trial)
        for name in sampled:
            if name not in hparams:
                known = nearest(name, hparams.values(), "hyperparameters")
                raise ValueError(
                    f"the ranged set {self.name} samples {name}, which the hparams do not have:"
                    f" {known}"
                )
        tried = hparams.copy()
        for name, value in sampled.items():
            try:
                tried.set(name, value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"the ranged set {self.name}: {error}") from error
        values = {name: tried.get(name) for name in sampled}
        for name, value in values.items():
            hparams.set(name, value)
        return values

    def _add(self, name: str, sample: Callable[[float], Any]) -> None:
        if name in self._samplers:
            raise ValueError(f"the ranged set {self.name} has two ranges of {name}")
        self._samplers[name] = sample


def _one_of(name: str, values: Sequence[Any]) -> Callable[[float], Any]:
    if not values:
        raise ValueError(f"the range of {name} is empty")
    chosen = list(values)
    return lambda fraction: chosen[int(fraction * len(chosen))]


def _check(name: str, min_val: float, max_val: float, scale: str) -> None:
    scales = (_LINEAR, _LOG, _REVERSE_LOG)
    if scale not in scales:
        raise ValueError(f"the scale of {name} is {scale!r}: {nearest(scale, scales, 'scales')}")
    if min_val > max_val:
        raise ValueError(f"the range of {name} is empty: from {min_val} to {max_val}")
    if scale != _LINEAR and min_val <= 0:
        raise ValueError(
            f"the range of {name} begins at {min_val}; on a logarithmic scale it must be above 0"
        )


def _at(fraction: float, min_val: float, max_val: float, scale: str) -> float:
    """Returns the point at a fraction of the way from `min_val` to `max_val`."""
    if scale == _LINEAR:
        return min_val + fraction * (max_val - min_val)
    point = math.exp(math.log(min_val) + fraction * (math.log(max_val) - math.log(min_val)))
    return point if scale == _LOG else min_val + max_val - point
