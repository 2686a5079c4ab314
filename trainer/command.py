"""What `t2tp_trainer` does once its flags are read: makes the experiment, runs its schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from absl import flags as absl_flags
from absl import logging

import t2tp.hparams
import t2tp.models  # noqa: F401  (these and the problems register what they hold)
from t2tp import registry
from t2tp.checkpoint import UnusableCheckpointError
from t2tp.decoding import DecodeOptions
from t2tp.hparam import UnknownHParamError
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.layout import LayoutError
from t2tp.mesh.processes import Place
from t2tp.models.model import FeatureMismatchError
from t2tp.nearest import nearest
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.manifest import DamagedDataError
from t2tp.problems.user_dir import import_user_dir
from t2tp.registry import UnknownNameError
from t2tp.trainer import console, plan, run_files, together
from t2tp.trainer.checkpointing import CheckpointMismatchError
from t2tp.trainer.early_stopping import EarlyStopping
from t2tp.trainer.errors import LostError, UsageError, as_usage_error
from t2tp.trainer.experiment import SCHEDULES, STOPPING_SCHEDULES, Experiment
from t2tp.trainer.hparams_text import hparams_text
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.plan import Plan

# What can be wrong with a run that is built: the user's to mend.
BUILD_ERRORS = (
    LayoutError,
    UnknownNameError,
    CheckpointMismatchError,
    UnusableCheckpointError,
    FileNotFoundError,
    FeatureMismatchError,
    run_files.OtherRunError,
    run_files.RunFileError,
    UnknownHParamError,
)

# What values of hparams, sizes above all, can lead to that no declaration and no check foresees.
_UNBUILDABLE = (ValueError, ArithmeticError, MemoryError, tf.errors.OpError)

# Where --explain_layout draws, in output_dir.
LAYOUT_FILE = "layout.html"


@contextlib.contextmanager
def building(model: str) -> Iterator[None]:
    """While this is active, errors of building a run become a `UsageError`.

    A model that does not come with t2tp may still be being written: of its errors only
    `BUILD_ERRORS` do, and the others keep their tracebacks.

    Args:
      model: name of the registered model.
    """
    comes_with_us = registry.model(model).__module__.startswith("t2tp.")
    with as_usage_error(*BUILD_ERRORS):
        try:
            yield
        except UsageError:
            raise
        except _UNBUILDABLE as error:
            if not comes_with_us or isinstance(error, BUILD_ERRORS):
                raise
            said = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            raise UsageError(f"{model} cannot be built with these hparams: {said}") from error


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
    if flags.print_hparams:
        with as_usage_error(ValueError, LookupError, OSError):
            print(hparams_text(plan.hparams_to_print(flags)))
        return
    console.use_plain_lines(place, with_time=flags.log_time)
    with as_usage_error(ValueError, LookupError, OSError):
        made = _plan(flags)
    if flags.explain_layout:
        _explain_layout(flags, made)
        return
    _warn_of_warmup(flags.schedule, made)
    try:
        # The processes meet before anything that may start TensorFlow up, as making data does.
        with as_usage_error(ValueError):
            cluster = together.connect_as(made.config)
        with together.telling_the_others(cluster), as_usage_error(DamagedDataError):
            _carry_out(flags, made, cluster)
    except together.OTHERS_FAULT as error:
        raise LostError(str(error)) from error


def _warn_of_warmup(schedule: str, made: Plan) -> None:
    """Says that the learning rate still rises when the training ends."""
    hparams, train_steps = made.hparams, made.settings["train_steps"]
    trains = ModeKeys.TRAIN in SCHEDULES[schedule]
    if not trains or "linear_warmup" not in hparams.learning_rate_schedule:
        return
    if hparams.learning_rate_warmup_steps >= train_steps:
        logging.warning(
            "learning_rate_warmup_steps=%d is not below train_steps=%d: the learning rate rises to"
            " the end of the training",
            hparams.learning_rate_warmup_steps,
            train_steps,
        )


def _carry_out(flags: absl_flags.FlagValues, made: Plan, cluster: Cluster) -> None:
    """Makes the experiment, builds it, says what it is, and runs the schedule."""
    with as_usage_error(ValueError, LookupError, OSError):
        if flags.generate_data:
            together.prepare_data(cluster, made.problem, flags.data_dir, flags.tmp_dir)
        experiment = _experiment(flags, made)
        experiment.estimator.connect()
    _look_inside(flags)
    with building(made.settings["model"]):
        experiment.build(flags.schedule)
    for line in (*made.changes, experiment.describe()):
        logging.info("%s", line)
    if flags.schedule == "predict":
        with as_usage_error(ValueError):
            written = experiment.predict(flags.decode_prompt, flags.decode_length)
        if cluster.leads:
            goes_on = isinstance(made.problem, LanguageModelProblem)
            print((flags.decode_prompt if goes_on else "") + written)
    elif flags.schedule == "test":
        with building(made.settings["model"]):  # It builds elsewhere.
            experiment.test()
    else:
        with as_usage_error(UnusableCheckpointError):  # Damaged while we worked.
            getattr(experiment, flags.schedule)()


def _explain_layout(flags: absl_flags.FlagValues, made: Plan) -> None:
    """Prints how the training program lies on its mesh, and draws it in the run's folder."""
    with as_usage_error(ValueError, LookupError, OSError):
        if flags.generate_data:
            made.problem.prepare(flags.data_dir, flags.tmp_dir, num_workers=None)
        experiment = _experiment(flags, made)
    with building(made.settings["model"]):
        explanation = experiment.explain()
    print(explanation)
    path = Path(made.config.output_dir, LAYOUT_FILE)
    with as_usage_error(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        explanation.save(path)
    logging.info("drawn in %s", path)


def _plan(flags: absl_flags.FlagValues) -> Plan:
    """Reads the flags and the saved run, and refuses what cannot be."""
    if flags.schedule not in SCHEDULES:
        known = nearest(flags.schedule, SCHEDULES, "schedules")
        raise UsageError(f"unknown schedule {flags.schedule!r}: {known}")
    stops = flags.eval_early_stopping_steps is not None
    if stops and flags.schedule not in STOPPING_SCHEDULES:
        raise UsageError(
            f"--eval_early_stopping_steps: the schedule {flags.schedule} does not evaluate again"
            f" and again; {', '.join(STOPPING_SCHEDULES)} do"
        )
    if flags.output_dir and flags.schedule != "predict":
        run_files.check_writable(flags.output_dir)
    return plan.make(flags)


def _experiment(flags: absl_flags.FlagValues, made: Plan) -> Experiment:
    return Experiment(
        made.settings["model"],
        made.settings["problem"],
        made.hparams,
        made.config,
        problem_options=made.settings["problem_options"],
        data_dir=flags.data_dir,
        train_steps=made.settings["train_steps"],
        eval_steps=flags.eval_steps,
        local_eval_frequency=flags.local_eval_frequency,
        eval_split="test" if flags.eval_use_test_set else "validation",
        eval_timeout_mins=flags.eval_timeout_mins,
        eval_samples=flags.eval_samples,
        early_stopping=_early_stopping(flags),
        decode_options=_decode_options(flags),
        flags={**flags.flag_values_dict(), "t2t_usr_dir": made.settings["t2t_usr_dir"]},
    )


def _early_stopping(flags: absl_flags.FlagValues) -> EarlyStopping | None:
    if flags.eval_early_stopping_steps is None:
        return None
    return EarlyStopping(
        flags.eval_early_stopping_steps,
        flags.eval_early_stopping_metric,
        flags.eval_early_stopping_metric_delta,
        flags.eval_early_stopping_metric_minimize,
    )


def _decode_options(flags: absl_flags.FlagValues) -> DecodeOptions:
    temperature = flags.decode_temperature
    return DecodeOptions(beam_size=1, temperature=temperature, batch_size=1)


def _look_inside(flags: absl_flags.FlagValues) -> None:
    """Turns TensorFlow's debugging on, for all programs that are traced from now on.

    Not `tf.debugging.enable_check_numerics`: it would stop at the NaN and infinities with which our
    operations mark what is no value.
    """
    if flags.dump_debug_info:
        tf.debugging.experimental.enable_dump_debug_info(
            flags.dump_debug_info, tensor_debug_mode="FULL_HEALTH", circular_buffer_size=-1
        )
