"""What `t2tp_eval` does once its flags are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from absl import flags as absl_flags

from t2tp import checkpoint, registry
from t2tp.mesh.processes import Place
from t2tp.problems.manifest import DamagedDataError
from t2tp.problems.user_dir import import_user_dir
from t2tp.trainer import checkpointing, console, plan, run_files, together
from t2tp.trainer.command import building
from t2tp.trainer.errors import LostError, as_usage_error
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.plan import Plan

_ALL = "all"


def run(flags: absl_flags.FlagValues, place: Place | None = None) -> None:
    """Evaluates what the flags name.

    Args:
      flags: of the command line.
      place: which of several processes this is.

    Raises:
      UsageError: it cannot be done.
      LostError: another process is gone, or did not come.
    """
    if flags.t2t_usr_dir:
        with as_usage_error(ValueError, OSError):
            import_user_dir(flags.t2t_usr_dir)
    if flags.registry_help:
        print(registry.help_text())
        return
    console.use_plain_lines(place)
    with as_usage_error(ValueError, LookupError, OSError):
        made = _plan(flags)
        paths = _checkpoints(flags)
    try:
        with as_usage_error(ValueError):
            cluster = together.connect_as(made.config)
        with together.telling_the_others(cluster), as_usage_error(DamagedDataError):
            with as_usage_error(ValueError, LookupError, OSError):
                if flags.generate_data:
                    together.prepare_data(cluster, made.problem, flags.data_dir, flags.tmp_dir)
                experiment = _experiment(flags, made, paths[0])
            rows = _evaluate(experiment, paths, made.settings["model"], speaks=cluster.leads)
    except together.OTHERS_FAULT as error:
        raise LostError(str(error)) from error
    if cluster.leads:
        print(_table(rows), file=sys.stderr)


def _plan(flags: absl_flags.FlagValues) -> Plan:
    if flags.output_dir:
        run_files.check_is_run(flags.output_dir)
    return plan.make(flags)


def _checkpoints(flags: absl_flags.FlagValues) -> list[Path]:
    """The checkpoints that are asked for.

    Raises:
      FileNotFoundError, UnusableCheckpointError: one of them is not there, or damaged.
    """
    directory = checkpointing.checkpoint_folder(flags.output_dir)
    if flags.checkpoint_path == _ALL:
        found = [checkpoint.step_folder(directory, n) for n in checkpoint.all_steps(directory)]
        if not found:
            raise FileNotFoundError(f"{flags.output_dir} holds no finished checkpoint")
        return found
    asked = flags.checkpoint_path or flags.output_dir
    return [Path(checkpointing.find(path.strip()).path) for path in asked.split(",")]


def _experiment(flags: absl_flags.FlagValues, made: Plan, path: Path) -> Experiment:
    return Experiment(
        made.settings["model"],
        made.settings["problem"],
        made.hparams,
        replace(made.config, checkpoint_path=str(path)),
        problem_options=made.settings["problem_options"],
        data_dir=flags.data_dir,
        train_steps=made.settings["train_steps"],
        eval_steps=flags.eval_steps,
        eval_split=flags.split,
    )


def _evaluate(
    experiment: Experiment, paths: Sequence[Path], model: str, speaks: bool
) -> list[dict]:
    """What came of each checkpoint; process 0 prints it at once."""
    rows = []
    for path in paths:
        with building(model):
            step, metrics = experiment.measure(path)
        rows.append({"checkpoint": str(path), "step": step, **metrics})
        if speaks:
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _table(rows: Sequence[dict]) -> str:
    """The steps and their metrics, in columns."""
    names = [name for name in rows[0] if name != "checkpoint"]
    cells = [names] + [
        [str(row["step"]), *(f"{row[name]:.4f}" for name in names[1:])] for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )
