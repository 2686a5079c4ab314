"""Reports a search: a table, the importance of each hparam, and TensorBoard's page HPARAMS."""

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams import summary_v2
from tensorboard.summary.writer.record_writer import RecordWriter

from t2tp.best_metric import BestMetric
from t2tp.ranged_hparams import Choice, Interval, RangedHParams
from t2tp.trainer.search.ledger import ERROR, VALUES

IMPORTANCE_FILE = "importance-{}.html"

# With fewer trials no importance can be computed.
_FEW = 5


def table(
    study: optuna.Study,
    results: Mapping[int, FrozenTrial],
    objectives: Sequence[BestMetric],
    directory: Path,
) -> str:
    """Formats a line per trial: the best trials first, then pruned and failed trials.

    With several objectives, the Pareto-optimal trials come first, marked by a star. `results` are
    the ended trials, by the index of their points.
    """
    best = {trial.number for trial in study.best_trials} if len(objectives) > 1 else set()
    front = {point for point, trial in results.items() if trial.number in best}
    sign = 1 if objectives[0].is_min else -1

    def rank(point: int) -> tuple[int, bool, float]:
        trial = results[point]
        order = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL].index(trial.state)
        return order, point not in front, sign * trial.values[0] if trial.values else 0.0

    return "\n".join(
        ("* " if point in front else "")
        + _outcome(results[point], objectives)
        + f": {directory / f'trial-{point:04d}'}"
        + "".join(f"  {n}={_short(v)}" for n, v in results[point].user_attrs[VALUES].items())
        for point in sorted(results, key=rank)
    )


def importances(
    study: optuna.Study, objectives: Sequence[BestMetric], directory: Path
) -> list[str]:
    """Computes and plots the importance of each hyperparameter; returns a line per objective.

    Returns no lines if too few trials are complete.
    """
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    lines = []
    for index, objective in enumerate(objectives):
        sign = 1 if objective.is_min else -1

        def target(trial: FrozenTrial, index: int = index, sign: int = sign) -> float:
            return sign * trial.values[index]

        if len(complete) < _FEW or len({target(trial) for trial in complete}) < 2:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The warnings are about defaults, not users' choices.
            shares = optuna.importance.get_param_importances(study, target=target)
            figure = optuna.visualization.plot_param_importances(
                study, target=target, target_name=objective.metric
            )
        path = directory / IMPORTANCE_FILE.format(objective.metric)
        figure.write_html(path)
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        text = "  ".join(f"{name} {share:.2f}" for name, share in ranked)
        lines.append(f"importance for {objective.metric}: {text}; drawn in {path}")
    return lines


def describe_to_tensorboard(
    ranged: RangedHParams, objectives: Sequence[BestMetric], directory: Path
) -> None:
    """Writes the hyperparameters and metrics of the search for TensorBoard's HPARAMS page.

    The events declare only names and domains; the trials' own events have the values and metrics.
    """
    if any(directory.glob("events.out.tfevents.*")):
        return  # An earlier process of the search has written these events.
    hparams = [summary_v2.HParam(each.name, _domain(each)) for each in ranged.ranges]
    metrics = [
        summary_v2.Metric(each.metric, group="eval", display_name=each.metric)
        for each in objectives
    ]
    directory.mkdir(parents=True, exist_ok=True)
    now = time.time()
    # TensorBoard's EventFileWriter would import TensorFlow.
    with (directory / f"events.out.tfevents.{now:.0f}.{os.getpid()}.search").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        summary = summary_v2.hparams_config_pb(hparams, metrics)
        writer.write(Event(wall_time=now, summary=summary).SerializeToString())


def _domain(each: Choice | Interval) -> summary_v2.Domain | None:
    """Returns the domain of a hyperparameter; None if TensorBoard cannot express the choices."""
    if not isinstance(each, Choice):
        kind = summary_v2.IntInterval if each.is_int else summary_v2.RealInterval
        number = int if each.is_int else float
        return kind(number(each.low), number(each.high))
    kinds = {type(value) for value in each.values}
    is_plain = len(kinds) == 1 and kinds <= {bool, int, float, str}
    return summary_v2.Discrete(each.values) if is_plain else None


def _outcome(trial: FrozenTrial, objectives: Sequence[BestMetric]) -> str:
    if trial.state == TrialState.FAIL:
        return f"failed, {trial.user_attrs[ERROR]}"
    values = [
        f"{each.metric} {value:.4f}"
        for each, value in zip(objectives, trial.values or [], strict=False)
    ]
    step = trial.last_step
    at = [] if step is None else [f"at step {step}"]
    return " ".join([*(["pruned,"] if trial.state == TrialState.PRUNED else []), *values, *at])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
