"""`t2tp_tune`: trains several points of a ranged set, one after another, and compares them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from t2tp.hparam import HParams
from t2tp.suggestions import nearest
from t2tp.trainer.cli import children, flag_groups
from t2tp.trainer.cli.programs import TRAINER
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import SIGNALLED, Interrupted, UsageError
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord

# The module and arguments that each trial runs.
PROGRAM = ("t2tp.trainer.cli", "t2tp_trainer")

_INTERRUPTED = (SIGNALLED + signal.SIGINT, SIGNALLED + signal.SIGTERM)

# The flags that t2tp_tune sets.
_OWN = ("hparams_range", "trial", "output_dir", "schedule")


class Trial(NamedTuple):
    """The result of a trial.

    Attributes:
      number: index of the trial.
      directory: of its run.
      step: of its last evaluation.
      metrics: of that evaluation.
      hparams: of its run.
    """

    number: int
    directory: Path
    step: int
    metrics: dict[str, float]
    hparams: Mapping[str, Any] = MappingProxyType({})


def run(invocation: Invocation) -> int:
    """Trains the trials and prints their table.

    Returns:
      The exit code of the first trial that failed, 0 if none did.

    Raises:
      UsageError: the flags after -- are not t2tp_trainer's, or a trial has no such metric.
      Interrupted: by a signal, which the trial also received.
    """
    flags, trainer_flags = invocation.flags, invocation.arguments
    _check(trainer_flags)
    finished = []
    for number in range(flags.first_trial, flags.first_trial + flags.trials):
        directory = Path(flags.output_dir) / f"trial-{number:04d}"
        code = _train(flags.hparams_range, number, directory, trainer_flags)
        if code:
            if code in _INTERRUPTED:
                resume = "started again, the search resumes with it"
                raise Interrupted(f"trial {number} was interrupted; {resume}", code - SIGNALLED)
            print(f"t2tp_tune: trial {number} failed", file=sys.stderr)
            return code
        finished.append(_result(number, directory))
    print(table(finished, flags.metric, flags.minimize))
    return 0


def table(trials: Sequence[Trial], metric: str, minimize: bool) -> str:
    """Formats a line per trial, best first.

    Args:
      trials: at least one.
      metric: to sort by.
      minimize: whether a smaller value is better.

    Raises:
      UsageError: an evaluation lacks the metric.
    """
    for trial in trials:
        if metric not in trial.metrics:
            raise UsageError(f"--metric={metric}: {nearest(metric, trial.metrics, 'metrics')}")
    ranked = sorted(trials, key=lambda trial: (1 if minimize else -1) * trial.metrics[metric])
    return "\n".join(
        f"{metric} {trial.metrics[metric]:.4f} at step {trial.step}: {trial.directory}"
        + "".join(
            f"  {name}={_short(trial.hparams[name])}"
            for name in _differing(trials)
            if name in trial.hparams
        )
        for trial in ranked
    )


def _differing(trials: Sequence[Trial]) -> list[str]:
    """Lists the hyperparameters that differ between trials or that some lack."""
    names = dict.fromkeys(name for trial in trials for name in trial.hparams)
    first, missing = trials[0].hparams, object()
    return [
        name
        for name in names
        if any(trial.hparams.get(name, missing) != first.get(name, missing) for trial in trials)
    ]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check(trainer_flags: Sequence[str]) -> None:
    """Checks the flags after --.

    Raises:
      UsageError: a flag is invalid, or is one that t2tp_tune sets.
    """
    values, _ = flag_groups.parse(TRAINER.groups, [TRAINER.name, *trainer_flags])
    for name in _OWN:
        if values[name].present:
            raise UsageError(f"--{name} is among the flags after --, and t2tp_tune sets it itself")


def _train(hparams_range: str, number: int, directory: Path, trainer_flags: Sequence[str]) -> int:
    """Trains and evaluates a trial in a new process; returns its exit code."""
    print(f"t2tp_tune: trial {number}, in {directory}", file=sys.stderr, flush=True)
    trial_flags = {"hparams_range": hparams_range, "trial": number, "output_dir": directory}
    flags = [f"--{name}={value}" for name, value in trial_flags.items()]
    processes: list[subprocess.Popen] = []
    with children.forwarded_signals(processes):
        processes.append(children.start([sys.executable, "-m", *PROGRAM, *flags, *trainer_flags]))
        return children.exit_code(processes[0].wait())


def _result(number: int, directory: Path) -> Trial:
    evaluations = EvaluationRecord(directory / "eval").by_step()
    if not evaluations:
        raise UsageError(f"trial {number} has no evaluation in {directory}")
    step = max(evaluations)
    hparams = HParams.load(directory / "hparams.json").values()
    return Trial(number, directory, step, evaluations[step], hparams)
