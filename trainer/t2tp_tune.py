"""`t2tp_tune`: trains several points of a ranged set, one after another, and compares them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import flags

from t2tp.hparam import HParams
from t2tp.nearest import nearest
from t2tp.trainer import flag_groups
from t2tp.trainer.errors import UsageError
from t2tp.trainer.evaluation_record import EvaluationRecord
from t2tp.trainer.flag_groups import Group
from t2tp.trainer.t2tp_trainer import SIGNALLED, WRONG_USAGE

_INTRO = """
Trains the points 0, 1, ... of a ranged set of hparams, each in a folder of its own, and prints what
came of them, the best first. What stands after -- are flags of t2tp_trainer:

  t2tp_tune --hparams_range=basic1 --trials=8 --output_dir=search -- --problem=P --model=M \\
      --hparams_set=S --data_dir=D --train_steps=1000

Interrupted and started again, it goes on where it was.
"""

# The module that each trial runs.
PROGRAM = "t2tp.trainer.t2tp_trainer"

# What t2tp_tune says itself to t2tp_trainer.
_OWN = ("hparams_range", "trial", "output_dir", "schedule")


class Trial(NamedTuple):
    """What came of a trial.

    Attributes:
      number: of the trial.
      folder: of its run.
      step: of its last evaluation.
      metrics: of that evaluation.
      hparams: of its run.
    """

    number: int
    folder: Path
    step: int
    metrics: dict[str, float]
    hparams: Mapping[str, Any] = MappingProxyType({})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line, with the program's name first; by default this process's.

    Returns:
      the exit code: that of the first trial that failed, 0 if none did.
    """
    given_arguments = list(sys.argv if arguments is None else arguments)
    cut = given_arguments.index("--") if "--" in given_arguments else len(given_arguments)
    try:
        given = flag_groups.parse(GROUPS, given_arguments[:cut])
        if flag_groups.answered(given, _INTRO, GROUPS):
            return 0
        trainer_flags = given_arguments[cut + 1 :]
        _check(given, trainer_flags)
        done = []
        for number in range(given.first_trial, given.first_trial + given.trials):
            folder = Path(given.output_dir) / f"trial-{number:04d}"
            code = _train(given.hparams_range, number, folder, trainer_flags)
            if code:
                print(f"t2tp_tune: trial {number} failed", file=sys.stderr)
                return code if code > 0 else SIGNALLED - code
            done.append(_result(number, folder))
        print(table(done, given.metric, given.minimize))
    except UsageError as error:
        print(f"t2tp_tune: {error}", file=sys.stderr)
        return WRONG_USAGE
    return 0


def table(trials: Sequence[Trial], metric: str, minimize: bool) -> str:
    """A line for each trial, the best first.

    Args:
      trials: some.
      metric: that they are compared by.
      minimize: whether a smaller value is better.

    Raises:
      UsageError: their evaluations do not have it.
    """
    for trial in trials:
        if metric not in trial.metrics:
            raise UsageError(f"--metric={metric}: {nearest(metric, trial.metrics, 'metrics')}")
    ranked = sorted(trials, key=lambda trial: (1 if minimize else -1) * trial.metrics[metric])
    return "\n".join(
        f"{metric} {trial.metrics[metric]:.4f} at step {trial.step}: {trial.folder}"
        + "".join(f"  {name}={_short(trial.hparams[name])}" for name in _differing(trials))
        for trial in ranked
    )


def _differing(trials: Sequence[Trial]) -> list[str]:
    """The hyperparameters that are not the same in all trials."""
    first = trials[0].hparams
    return [name for name in first if any(t.hparams[name] != first[name] for t in trials)]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check(given: flags.FlagValues, trainer_flags: Sequence[str]) -> None:
    for name in ("hparams_range", "output_dir"):
        if not given[name].value:
            raise UsageError(f"--{name} is missing")
    if not trainer_flags:
        raise UsageError("the flags of t2tp_trainer are missing: they stand after --")
    for flag in trainer_flags:
        name = flag.lstrip("-").partition("=")[0]
        if name in _OWN:
            raise UsageError(f"{flag} stands after --, and t2tp_tune says it itself to each trial")


def _train(hparams_range: str, number: int, folder: Path, trainer_flags: Sequence[str]) -> int:
    """Trains and evaluates a trial in a process of its own; returns its exit code."""
    print(f"t2tp_tune: trial {number}, in {folder}", file=sys.stderr, flush=True)
    own = {"hparams_range": hparams_range, "trial": number, "output_dir": folder}
    flags = [f"--{name}={value}" for name, value in own.items()]
    process = subprocess.Popen([sys.executable, "-m", PROGRAM, *flags, *trainer_flags])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # The terminal has sent it to the trainer, too, which saves.
            continue


def _result(number: int, folder: Path) -> Trial:
    evaluations = EvaluationRecord(folder / "eval").by_step()
    if not evaluations:
        raise UsageError(f"trial {number} has no evaluation in {folder}")
    step = max(evaluations)
    hparams = HParams.load(folder / "hparams.json").values()
    return Trial(number, folder, step, evaluations[step], hparams)


def _define(ours: flags.FlagValues) -> None:
    flags.DEFINE_string("hparams_range", None, "Name of a registered ranged set.", flag_values=ours)
    flags.DEFINE_integer("trials", 10, "How many points to train.", lower_bound=1, flag_values=ours)
    flags.DEFINE_integer(
        "first_trial", 0, "Number of the first point.", lower_bound=0, flag_values=ours
    )
    flags.DEFINE_string(
        "output_dir", None, "Folder of the search; each run has its own in it.", flag_values=ours
    )
    flags.DEFINE_string("metric", "loss", "The metric to compare by.", flag_values=ours)
    flags.DEFINE_bool(
        "minimize", True, "Whether a smaller value of the metric is better.", flag_values=ours
    )


GROUPS = (Group("What to try", _define),)

if __name__ == "__main__":
    sys.exit(main())
