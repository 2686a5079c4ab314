"""The samplers and pruners of `t2tp_tune`: which points are tried, and which stop early."""

import random

import optuna

from t2tp.best_metric import BestMetric
from t2tp.ranged_hparams import RangedHParams
from t2tp.trainer.errors import UsageError
from t2tp.trainer.search.ranges import parameters

# ASHA and Hyperband continue one in three trials after each rung.
_REDUCTION = 3


class Sampling:
    """Draws the points of a search.

    Attributes:
      grid_size: number of points of the grid; None for other samplers.
    """

    def __init__(self, name: str, ranged: RangedHParams, grid_points: int) -> None:
        """Sets the sampler.

        `name` is the value of --sampler; `grid_points` is the number of values of each interval.
        """
        self._name = name
        self._ranged = ranged
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
        values = self._ranged.sample_trial(point) if self._name == "random" else self._grid[point]
        fixed = parameters(self._ranged, values)
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
    objectives = []
    for part in text.split(","):
        kind, colon, metric = part.strip().partition(":")
        if not colon:
            kind, metric = ("min" if minimize else "max"), kind
        if kind not in ("min", "max") or not metric:
            raise UsageError(
                f"--metric={text}: expected METRIC, min:METRIC or max:METRIC, or several with"
                " commas between them"
            )
        objectives.append(BestMetric(metric, kind == "min"))
    if len({each.metric for each in objectives}) < len(objectives):
        raise UsageError(f"--metric={text}: a metric occurs twice")
    return objectives
