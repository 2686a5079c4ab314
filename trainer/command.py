"""What `t2tp_trainer` does once its flags are read: makes the experiment, runs its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl import logging

import t2tp.hparams
import t2tp.models  # noqa: F401  (these and the problems register what they hold)
from t2tp import problems, registry
from t2tp.checkpoint import UnusableCheckpointError
from t2tp.hparam import HParams, describe_differences
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.layout import LayoutError
from t2tp.mesh.processes import Place
from t2tp.models.model import FeatureMismatchError
from t2tp.nearest import nearest
from t2tp.problems.problem import Problem
from t2tp.problems.user_dir import import_user_dir
from t2tp.registry import UnknownNameError
from t2tp.trainer import console, run_files, together
from t2tp.trainer.checkpointing import CheckpointMismatchError
from t2tp.trainer.errors import LostError, UsageError, as_usage_error
from t2tp.trainer.experiment import SCHEDULES, Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_files import SavedRun

_BUILD_ERRORS = (
    LayoutError,
    UnknownNameError,
    CheckpointMismatchError,
    UnusableCheckpointError,
    FileNotFoundError,
    FeatureMismatchError,
    run_files.OtherRunError,
)

# Where --explain_layout draws, in output_dir.
LAYOUT_FILE = "layout.html"

# What a run keeps when it goes on, unless the flag is given; and what a new run has.
_DEFAULTS = {
    "model": None,
    "problem": None,
    "problem_options": "",
    "hparams_set": None,
    "train_steps": 250_000,
    "random_seed": 0,
}


@dataclass(frozen=True)
class _Plan:
    """What the flags ask for, together with what the saved run has.

    Attributes:
      settings: what a run keeps, by the flags' names.
      changes: a line for everything in which it is not the saved run.
    """

    settings: dict[str, Any]
    problem: Problem
    hparams: HParams
    config: RunConfig
    changes: list[str]


def run(flags: absl_flags.FlagValues, place: Place | None = None) -> None:
    """Does what the flags say.

    Args:
      flags: of the command line.
      place: which of several processes this is.

    Raises:
      UsageError: it cannot be done; nothing was written.
      TrainingInterrupted: by SIGINT or SIGTERM, after the step was saved.
      LostError: another process is gone, or did not come.
    """
    if flags.t2t_usr_dir:
        with as_usage_error(ValueError, OSError):
            import_user_dir(flags.t2t_usr_dir)
    if flags.registry_help:
        print(f"{registry.help_text()}\n\nSchedules:\n  {', '.join(SCHEDULES)}")
        return
    console.use_plain_lines(place)
    with as_usage_error(ValueError, LookupError, OSError):
        plan = _plan(flags)
    if flags.explain_layout:
        _explain_layout(flags, plan)
        return
    try:
        # The processes meet before anything that may start TensorFlow up, as making data does.
        with as_usage_error(ValueError):
            cluster = together.connect_as(plan.config)
        with together.telling_the_others(cluster):
            _carry_out(flags, plan, cluster)
    except together.OTHERS_FAULT as error:
        raise LostError(str(error)) from error


def _carry_out(flags: absl_flags.FlagValues, plan: _Plan, cluster: Cluster) -> None:
    """Makes the experiment, builds it, says what it is, and runs the schedule."""
    with as_usage_error(ValueError, LookupError, OSError):
        if flags.generate_data:
            together.prepare_data(cluster, plan.problem, flags.data_dir, flags.tmp_dir)
        experiment = _experiment(flags, plan)
        experiment.estimator.connect()
    # What goes wrong here besides is not the user's doing, and deserves its traceback.
    with as_usage_error(*_BUILD_ERRORS):
        experiment.build(flags.schedule)
    for line in (*plan.changes, experiment.describe()):
        logging.info("%s", line)
    if flags.schedule == "predict":
        sampled = experiment.predict(
            flags.decode_prompt, flags.decode_length, flags.decode_temperature
        )
        if cluster.leads:
            print(flags.decode_prompt + sampled)
    else:
        getattr(experiment, flags.schedule)()


def _explain_layout(flags: absl_flags.FlagValues, plan: _Plan) -> None:
    """Prints how the training program lies on its mesh, and draws it in the run's folder."""
    with as_usage_error(ValueError, LookupError, OSError):
        if flags.generate_data:
            plan.problem.prepare(flags.data_dir, flags.tmp_dir)
        experiment = _experiment(flags, plan)
    with as_usage_error(*_BUILD_ERRORS):
        explanation = experiment.explain()
    print(explanation)
    path = Path(plan.config.output_dir, LAYOUT_FILE)
    with as_usage_error(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        explanation.save(path)
    logging.info("drawn in %s", path)


def _plan(flags: absl_flags.FlagValues) -> _Plan:
    """Reads the flags and the saved run, and refuses what cannot be."""
    if flags.schedule not in SCHEDULES:
        known = nearest(flags.schedule, SCHEDULES, "schedules")
        raise UsageError(f"unknown schedule {flags.schedule!r}: {known}")
    for name in ("output_dir", "data_dir"):
        if not flags[name].value:
            raise UsageError(f"--{name} is missing")
    run_files.check_writable(flags.output_dir)
    saved = run_files.read(flags.output_dir)
    settings = {name: _setting(flags, name, saved) for name in _DEFAULTS}
    registry.model(settings["model"])
    problem = problems.find(settings["problem"], settings["problem_options"])
    if saved is not None:
        run_files.check_same_run(flags.output_dir, saved, settings["model"], settings["problem"])
    hparams, changes = _hparams(flags, saved, problem)
    config = RunConfig.of(
        hparams,
        flags.output_dir,
        random_seed=settings["random_seed"],
        xla=flags.xla,
        save_checkpoints_steps=flags.save_checkpoints_steps,
        keep_checkpoint_max=flags.keep_checkpoint_max,
        log_step_count_steps=flags.log_step_count_steps,
        num_processes=flags.num_processes,
        process_id=flags.process_id,
        coordinator=flags.coordinator,
    )
    changes += _changed_settings(saved, settings)
    return _Plan(settings, problem, hparams, config, changes)


def _experiment(flags: absl_flags.FlagValues, plan: _Plan) -> Experiment:
    return Experiment(
        plan.settings["model"],
        plan.settings["problem"],
        plan.hparams,
        plan.config,
        problem_options=plan.settings["problem_options"],
        data_dir=flags.data_dir,
        train_steps=plan.settings["train_steps"],
        eval_steps=flags.eval_steps,
        local_eval_frequency=flags.local_eval_frequency,
        flags=flags.flag_values_dict(),
    )


def _setting(flags: absl_flags.FlagValues, name: str, saved: SavedRun | None) -> Any:
    """The flag's value if it is given, else the saved run's, else the default.

    Raises:
      UsageError: there is none.
    """
    for value in (flags[name].value, saved and saved.flags.get(name), _DEFAULTS[name]):
        if value is not None:
            return value
    raise UsageError(f"--{name} is missing, and {flags.output_dir} holds no run to go on with")


def _hparams(
    flags: absl_flags.FlagValues, saved: SavedRun | None, problem: Problem
) -> tuple[HParams, list[str]]:
    """The run's hparams, and a line for each that saved run, set and flags do not agree on."""
    preset = registry.hparams(_setting(flags, "hparams_set", saved))
    problem.change_hparams(preset)
    hparams = preset.copy() if saved is None else run_files.resumed_hparams(saved.hparams, preset)
    given: dict[str, Any] = {}
    for text in flags.hparams:
        given.update(hparams.parse(text))
    for name in ("mesh_shape", "layout"):
        if flags[name].value is None:
            continue
        value = hparams.parse(f"{name}={flags[name].value}")[name]
        if given.setdefault(name, value) != value:
            raise UsageError(
                f"--{name}={value} and --hparams={name}={given[name]} differ: give one of them"
            )
    return hparams, describe_differences(saved.hparams, preset, given) if saved else []


def _changed_settings(saved: SavedRun | None, settings: dict[str, Any]) -> list[str]:
    """A line for each flag that is not what the saved run had."""
    if saved is None:
        return []
    return [
        f"{name}: {saved.flags[name]} in the saved run; using {value} from --{name}"
        for name, value in settings.items()
        if name in saved.flags and saved.flags[name] != value
    ]
