"""`t2tp_tune`: draws points from a ranged set, trains several at once, and compares them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags as absl_flags

import t2tp.hparams  # noqa: F401  (registers ranged sets)
from t2tp import problems, registry
from t2tp.problems.metrics import METRICS
from t2tp.ranged_hparams import RangedHParams
from t2tp.suggestions import check_known
from t2tp.trainer.cli import flag_groups
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.cli.run_program import import_user_dir_of
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hparams_fit import read_set
from t2tp.trainer.processes.local_processes import visible_gpus

# Each trial runs this module with this first argument.
PROGRAM = ("t2tp.trainer.cli", "t2tp_trainer")

# Flags of t2tp_trainer: flags that t2tp_tune sets, and flags that the user must give after --.
_OWN = ("hparams_range", "trial", "output_dir", "schedule")
_NEEDED = ("problem", "model", "hparams_set", "data_dir")

_LOSS_TERM = "loss/"  # Prefix of metrics that only the model knows, such as loss/aux.
_TRIALS = 10
_TRAIN_STEPS = 250_000  # The default of t2tp_trainer.


def run(flags: absl_flags.FlagValues, *trainer_flags: str) -> int:
    """Runs the search, and prints its table.

    Returns:
      0, or the exit code of the last trial if all have failed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("t2tp_tune searches with Optuna: pip install -e '.[tune]'")
    trainer = _parse(trainer_flags)
    # A user's directory may register metrics; they are valid although no problem lists them.
    built_in = {*METRICS}
    import_user_dir_of(trainer)
    with as_usage_error(LookupError, ValueError, OSError):
        ranged = registry.ranged_hparams(flags.hparams_range)
        problem = problems.find(trainer.problem, trainer.problem_options or "")
        metrics = sorted({*problem.metric_names, *(METRICS.keys() - built_in)})
        _check_ranges(ranged, trainer)
    return _search(flags, trainer, ranged, metrics, trainer_flags)


def _search(
    flags: absl_flags.FlagValues,
    trainer: absl_flags.FlagValues,
    ranged: RangedHParams,
    metrics: Sequence[str],
    trainer_flags: Sequence[str],
) -> int:
    # Imported here, because Optuna is an optional dependency.
    from t2tp.trainer.search import report, study
    from t2tp.trainer.search.ledger import Claim, Ledger
    from t2tp.trainer.search.search import Devices, TrialSearch

    objectives = study.parse_objectives(flags.metric, flags.minimize)
    for each in objectives:
        if not each.metric.startswith(_LOSS_TERM):
            what = f"metrics of {trainer.problem}"
            check_known(each.metric, metrics, what, f"--metric={each.metric}", UsageError)
    frequency = trainer.local_eval_frequency
    last_step = trainer.train_steps or _TRAIN_STEPS
    if flags.pruner != "none" and (len(objectives) > 1 or not 0 < frequency < last_step):
        raise UsageError(
            f"--pruner={flags.pruner} compares the evaluations of one --metric while trials train:"
            " give one --metric, and after -- a --local_eval_frequency below --train_steps"
        )
    with as_usage_error(ValueError):
        devices = Devices.of_each(
            flags.parallel_trials,
            flags.devices_per_trial,
            visible_gpus(),
            sorted(os.sched_getaffinity(0)),
        )
    sampling = study.Sampling(flags.sampler, ranged, flags.grid_points)
    trials = flags.trials or sampling.grid_size or _TRIALS
    if sampling.grid_size is not None and trials > sampling.grid_size:
        raise UsageError(f"--trials={trials}: the grid has {sampling.grid_size} points")
    directory = Path(flags.output_dir)
    with as_usage_error(OSError):
        report.describe_to_tensorboard(ranged, objectives, directory)
    opened = study.open_study(
        flags.study or study.sqlite_address(directory / "study.db"),
        flags.study_name or ranged.name,
        ranged.name,
        objectives,
        flags.lost_after_seconds,
    )
    opened.pruner = study.pruner_of(flags.pruner, frequency, last_step)
    ledger = Ledger(opened, sampling, trials, flags.lost_after_seconds)

    # The values are passed as text, not as the trial's number: the trainer then needs no database,
    # and its `run.yaml` has all that it takes to repeat the trial.
    def command(claim: Claim, directory: Path) -> list[str]:
        own = [f"--output_dir={directory}", f"--hparams={study.flag_text(claim.values)}"]
        return [sys.executable, "-m", *PROGRAM, *own, *trainer_flags]

    prunes_before = last_step if flags.pruner != "none" else 0
    code = TrialSearch(ledger, command, directory, objectives, devices, prunes_before).run()
    if ledger.is_done():
        print(report.table(opened, ledger.attempts(), objectives, directory))
        for line in report.importances(opened, objectives, directory):
            print(line)
    return code


def _parse(trainer_flags: Sequence[str]) -> absl_flags.FlagValues:
    """Parses the flags after --."""
    values, _ = flag_groups.parse(PROGRAMS["t2tp_trainer"].groups, ["t2tp_trainer", *trainer_flags])
    for name in _OWN:
        if values[name].present:
            raise UsageError(f"--{name} is among the flags after --, and t2tp_tune sets it itself")
    flag_groups.check_given(values, _NEEDED)
    return values


def _check_ranges(ranged: RangedHParams, trainer: absl_flags.FlagValues) -> None:
    """Checks that the hparams set has the ranges' hparams, and --hparams sets none of them."""
    hparams = read_set(trainer.hparams_set)
    changes: dict[str, object] = {}
    for text in trainer.hparams:
        changes |= hparams.parse(text)
    ranged.check_declared(hparams)
    for each in ranged.ranges:
        if each.name in changes:
            raise UsageError(
                f"--hparams sets {each.name}, which the ranged set {ranged.name} draws: leave it"
                " out, or write a ranged set without it"
            )
