"""The study of a search: its database, parameters, objectives, samplers and pruners."""

import math
import random
import time
import urllib.parse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import StudyDirection
from sqlalchemy.exc import DBAPIError

from t2tp.best_metric import BestMetric
from t2tp.object_store.store import without_secrets
from t2tp.ranged_hparams import LOG, REVERSE_LOG, Choice, Interval, RangedHParams
from t2tp.trainer.errors import UsageError

_ABOUT = "search"
_SQLITE_TIMEOUT = 60.0  # Seconds to wait for other processes that write into the file.
_RETRY_SECONDS = (1.0, 2.0, 4.0, None)

# Optuna has no scale that is denser towards the maximum, so it draws low + high - value instead.
_MIRRORED = "mirrored {}"

# ASHA and Hyperband continue one in three trials after each rung.
_REDUCTION = 3

with warnings.catch_warnings():
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    retry = RetryHeartbeatStaleTrialCallback()


def sqlite_address(path: Path) -> str:
    """Returns the address of a study in a file."""
    # Absolute, because the trials may run in other directories.
    return f"sqlite:///file:{urllib.parse.quote(str(path.absolute()))}?uri=true"


def open_study(
    address: str,
    name: str,
    hparams_range: str,
    objectives: Sequence[BestMetric],
    lost_after_seconds: float,
) -> optuna.Study:
    """Opens a study; creates it if needed.

    A trial without a heartbeat for `lost_after_seconds` is lost.

    Raises:
      UsageError: the study cannot be opened, or belongs to a search with other settings.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    # Optuna warns that only `Study.optimize` records heartbeats, but `Ledger` records them too.
    warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed to be used with")
    directions = [
        StudyDirection.MINIMIZE if each.is_min else StudyDirection.MAXIMIZE for each in objectives
    ]
    about = f"{hparams_range} by {', '.join(each.metric for each in objectives)}"
    # The errors of SQLAlchemy, of its drivers and of Optuna have no common base class.
    try:
        study = _create_study(address, name, directions, lost_after_seconds)
        before = study.user_attrs.get(_ABOUT)
        if before is None:
            study.set_user_attr(_ABOUT, about)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"--study={without_secrets(address)} cannot be opened:"
            f" {without_secrets(reason.replace(address, without_secrets(address)))}"
        ) from None
    if before not in (None, about) or study.directions != directions:
        raise UsageError(
            f"the study {name} in {without_secrets(address)} searches {before}, in its directions:"
            " give the same --hparams_range, --metric and --minimize, or another --study_name"
        )
    return study


def _create_study(
    address: str, name: str, directions: Sequence[StudyDirection], lost_after_seconds: float
) -> optuna.Study:
    """Opens or creates a study; retries if another process creates the tables at that moment."""
    is_sqlite = address.startswith("sqlite")
    for seconds in _RETRY_SECONDS:
        try:
            storage = RDBStorage(
                address,
                engine_kwargs={"connect_args": {"timeout": _SQLITE_TIMEOUT}} if is_sqlite else None,
                heartbeat_interval=max(1, int(lost_after_seconds / 4)),
                grace_period=math.ceil(lost_after_seconds),
                heartbeat_stale_trial_callback=retry,
            )
            return optuna.create_study(
                storage=storage, study_name=name, directions=directions, load_if_exists=True
            )
        except DBAPIError:  # Another process may have created the same tables at this moment.
            if seconds is None:
                raise
            time.sleep(seconds * random.random())
    raise AssertionError


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
            converted[_parameter_name(each)] = value
    return converted


def _parameter_name(each: Choice | Interval) -> str:
    """Returns the name of a range's parameter in Optuna."""
    mirrored = isinstance(each, Interval) and each.scale == REVERSE_LOG
    return _MIRRORED.format(each.name) if mirrored else each.name


def flag_text(values: Mapping[str, Any]) -> str:
    """Formats values as the flag --hparams reads them."""
    return ",".join(f"{name}={_text(value)}" for name, value in values.items())


def _suggest(trial: optuna.trial.Trial, each: Choice | Interval) -> Any:
    name = _parameter_name(each)
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


class Sampling:
    """Draws the points of a search.

    Attributes:
      ranged: the ranges of the points.
      grid_size: number of points of the grid; None for other samplers.
    """

    def __init__(self, name: str, ranged: RangedHParams, grid_points: int) -> None:
        """Sets the sampler.

        `name` is the value of --sampler; `grid_points` is the number of values of each interval.
        """
        self._name = name
        self.ranged = ranged
        self._grid = ranged.grid(grid_points) if name == "grid" else []
        # Pruners compare a trial with earlier trials, which should not all be grid neighbors.
        random.Random(ranged.name).shuffle(self._grid)
        self.grid_size = len(self._grid) if name == "grid" else None

    def sampler(self, point: int) -> optuna.samplers.BaseSampler:
        """Makes the sampler of a point; `random` draws the same point as `t2tp_trainer --trial`.

        The seed is the point's index: with a common seed, all processes would draw the same values.
        """
        if self._name == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=point, warn_independent_sampling=False)
        if self._name == "tpe":
            return optuna.samplers.TPESampler(seed=point)
        values = self.ranged.sample_trial(point) if self._name == "random" else self._grid[point]
        fixed = parameters(self.ranged, values)
        return optuna.samplers.PartialFixedSampler(fixed, optuna.samplers.RandomSampler(seed=point))


def pruner_of(name: str, first_step: int, last_step: int) -> optuna.pruners.BasePruner:
    """Makes a pruner, given the training steps of the first and the last evaluation.

    `name` is the value of --pruner.
    """
    if name == "median":
        return optuna.pruners.MedianPruner()
    if name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=first_step, reduction_factor=_REDUCTION
        )
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=first_step,
            max_resource=max(first_step, last_step),
            reduction_factor=_REDUCTION,
        )
    return optuna.pruners.NopPruner()


def parse_objectives(text: str, minimize: bool) -> list[BestMetric]:
    """Parses `METRIC`, `min:METRIC` or `max:METRIC`, or several of these, separated by commas.

    `minimize` is the direction of a metric without `min:` or `max:`.

    Raises:
      UsageError: the text cannot be parsed, or a metric occurs twice.
    """
    default = "min:" if minimize else "max:"
    parts = [part.strip() for part in text.split(",")]
    try:
        objectives = [BestMetric.parse(each if ":" in each else default + each) for each in parts]
    except ValueError as error:
        raise UsageError(
            f"--metric={text}: expected METRIC, min:METRIC or max:METRIC, or several with commas"
            " between them"
        ) from error
    if len({each.metric for each in objectives}) < len(objectives):
        raise UsageError(f"--metric={text}: a metric occurs twice")
    return objectives
