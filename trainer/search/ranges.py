"""Draws the values of a ranged set with Optuna."""

from collections.abc import Mapping
from typing import Any

import optuna

from t2tp.ranged_hparams import LOG, REVERSE_LOG, Choice, Interval, RangedHParams

# Optuna has no scale that is denser towards the maximum, so it draws low + high - value instead.
_MIRRORED = "mirrored {}"


def suggest(trial: optuna.trial.Trial, ranged: RangedHParams) -> dict[str, Any]:
    """Returns the values of a trial by hyperparameter, drawn by the study's sampler."""
    return ranged.draw(lambda each: _suggest(trial, each))


def parameters(ranged: RangedHParams, values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values by hyperparameter to the parameters that Optuna stores."""
    converted = {}
    for each in ranged.ranges:
        if each.name in values:
            value = values[each.name]
            if isinstance(each, Choice):
                value = _stored(value)
            elif each.scale == REVERSE_LOG:
                value = each.low + each.high - value
            converted[parameter_name(each)] = value
    return converted


def parameter_name(each: Choice | Interval) -> str:
    """Returns the name of a range's parameter in Optuna."""
    mirrored = isinstance(each, Interval) and each.scale == REVERSE_LOG
    return _MIRRORED.format(each.name) if mirrored else each.name


def flag_text(values: Mapping[str, Any]) -> str:
    """Formats values as the flag --hparams reads them."""
    return ",".join(f"{name}={_text(value)}" for name, value in values.items())


def _suggest(trial: optuna.trial.Trial, each: Choice | Interval) -> Any:
    name = parameter_name(each)
    if isinstance(each, Choice):
        stored = [_stored(value) for value in each.values]
        return each.values[stored.index(trial.suggest_categorical(name, stored))]
    is_log = each.scale in (LOG, REVERSE_LOG)
    drawn: float
    if each.is_int:
        drawn = trial.suggest_int(name, int(each.low), int(each.high), log=is_log)
    else:
        drawn = trial.suggest_float(name, each.low, each.high, log=is_log)
    return each.low + each.high - drawn if each.scale == REVERSE_LOG else drawn


def _stored(value: Any) -> Any:
    """Returns a choice's value as the study stores it: a list becomes text."""
    return _text(value) if isinstance(value, (list, tuple)) else value


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_text, value))}]"
    return repr(value) if isinstance(value, (str, float)) else str(value)
