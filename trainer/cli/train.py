"""`t2tp_trainer`: creates an experiment from the flags and runs its schedule."""

import contextlib
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import tensorflow as tf
from absl import flags as absl_flags
from absl import logging

from t2tp import registry
from t2tp.checkpoint import UnusableCheckpointError
from t2tp.checkpoint.frozen_base import BaseError
from t2tp.checkpoint.variables import CheckpointMismatchError
from t2tp.decoding import DecodeOptions
from t2tp.hparam import UnknownHParamError
from t2tp.mesh.layout import LayoutError
from t2tp.models.model import FeatureMismatchError
from t2tp.optim.schedules import rate_at, warmup_steps
from t2tp.problems.data.manifest import DamagedDataError
from t2tp.processes.cluster import Cluster
from t2tp.registry import UnknownNameError
from t2tp.trainer import run_yaml
from t2tp.trainer.cli.spec_from_flags import hparams_to_print, spec_from_flags
from t2tp.trainer.errors import FailedError, UsageError, as_usage_error, first_line
from t2tp.trainer.experiment import SCHEDULES, Experiment
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.processes import multiprocess
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_spec import RunSpec

# Errors of building a run that the user can fix.
BUILD_ERRORS = (
    LayoutError,
    UnknownNameError,
    BaseError,
    CheckpointMismatchError,
    UnusableCheckpointError,
    FileNotFoundError,
    FeatureMismatchError,
    run_files.OtherRunError,
    run_files.RunFileError,
    UnknownHParamError,
)

# Errors that invalid hparams (mostly sizes) cause when no check has caught them.
_UNBUILDABLE = (ValueError, ArithmeticError, MemoryError, tf.errors.OpError)


@contextlib.contextmanager
def building(model: str) -> Iterator[None]:
    """Converts errors of building a run to `UsageError`.

    A user's own model may still be in development, so its errors keep their tracebacks, unless they
    are `BUILD_ERRORS`.
    """
    is_own = not registry.model(model).__module__.startswith("t2tp.")
    with as_usage_error(*BUILD_ERRORS):
        try:
            yield
        except _UNBUILDABLE as error:
            if is_own or isinstance(error, (UsageError, *BUILD_ERRORS)):
                raise
            message = f"{model} cannot be built with these hparams: {first_line(error)}"
            raise UsageError(message) from error


@contextlib.contextmanager
def joined(flags: absl_flags.FlagValues, spec: RunSpec) -> Iterator[Cluster]:
    """Joins the other processes, if any, and generates the data with --generate_data."""
    # Join first: TensorFlow must not start before joining, and preparing data may start TensorFlow.
    joining = multiprocess.joined(lambda: multiprocess.connect_as(spec.config, spec.layout))
    with joining as cluster, as_usage_error(DamagedDataError):
        if flags.generate_data:
            with as_usage_error(ValueError, LookupError, OSError):
                multiprocess.prepare_data(cluster, spec.problem, flags.data_dir, flags.tmp_dir)
        yield cluster


def run(flags: absl_flags.FlagValues) -> None:
    """Runs the schedule of the flags, or explains or checks the run."""
    with as_usage_error(ValueError, LookupError, OSError):
        # Before hours of preparing data end at a directory that cannot be written.
        if flags.output_dir:
            run_files.check_writable(flags.output_dir)
        spec = spec_from_flags(flags)
    if not (flags.explain_layout or flags.check_layout):
        with joined(flags, spec):
            _carry_out(flags, spec)
        return
    with as_usage_error(ValueError, LookupError, OSError):
        if flags.generate_data:
            spec.problem.prepare(flags.data_dir, flags.tmp_dir, num_workers=None)
            spec = _with_prepared_data(flags, spec)
    if flags.explain_layout:
        _explain(flags, spec)
    else:
        _check(spec)


def print_registry(flags: absl_flags.FlagValues) -> None:
    """Prints the names of everything that is registered, and the schedules (--registry_help)."""
    print(f"{registry.help_text()}\n\nSchedules:\n  {', '.join(SCHEDULES)}")


def print_hparams(flags: absl_flags.FlagValues) -> None:
    """Prints the resulting hparams, each with its valid values and help (--print_hparams)."""
    with as_usage_error(ValueError, LookupError, OSError):
        hparams = hparams_to_print(flags)
    for name, value in hparams.values().items():
        print(f"{name}={value}")
        comment = f"{hparams.expected(name)}; {hparams.help(name)}".removesuffix("; ")
        print(textwrap.fill(comment, 100, initial_indent=" " * 4, subsequent_indent=" " * 4))


def _warn_of_warmup(spec: RunSpec) -> None:
    """Warns if the run is too short for its warm-up, which is then shortened."""
    hparams, train_steps = spec.hparams, spec.train_steps
    if "linear_warmup" not in hparams.learning_rate_schedule:
        return
    steps = warmup_steps(hparams, train_steps)
    if steps != hparams.learning_rate_warmup_steps:
        logging.warning(
            f"learning_rate_warmup_steps={hparams.learning_rate_warmup_steps} is more than half of"
            f" train_steps={train_steps}: the warm-up takes {steps} steps instead, a tenth"
        )


def _warn_of_new_rate(spec: RunSpec, step: int) -> None:
    """Warns if another number of steps changes the learning rate of a resumed run at once."""
    before = spec.saved and spec.saved.flags.get("train_steps")
    if not before or not 0 < step < spec.train_steps or before == spec.train_steps:
        return
    steps = before, spec.train_steps
    old, new = (float(rate_at(step - 1, spec.hparams, count)) for count in steps)
    warmups = [warmup_steps(spec.hparams, count) for count in steps]
    shortened = warmups[0] != warmups[1] and step < 2 * warmups[1]
    if shortened or abs(new - old) > 0.01 * old:
        advice = f"; --hparams=learning_rate_warmup_steps={warmups[0]} keeps the warm-up"
        logging.warning(
            f"train_steps={spec.train_steps} instead of {before} changes the learning rate of step"
            f" {step} from {old:.3g} to {new:.3g}{advice * shortened}"
        )


def _carry_out(flags: absl_flags.FlagValues, spec: RunSpec) -> None:
    """Creates, builds and describes the experiment, and runs the schedule."""
    with as_usage_error(ValueError, LookupError, OSError):
        # Only prepared data know their vocabulary, and with it hparams such as `bos_token_id`.
        if flags.generate_data:
            spec = _with_prepared_data(flags, spec)
        experiment = _experiment(flags, spec)
        experiment.estimator.connect()
    # The schedule's methods build, too. Built here, errors of the model are not mixed with errors
    # of training, whose tracebacks the user needs.
    with building(spec.model):
        experiment.build(flags.schedule)
    if ModeKeys.TRAIN in SCHEDULES[flags.schedule]:
        _warn_of_warmup(spec)
        _warn_of_new_rate(spec, experiment.estimator.steps_done)
    for line in (*spec.changes, experiment.describe()):
        logging.info("%s", line)
    # A checkpoint may be damaged after `build`.
    with as_usage_error(UnusableCheckpointError, run_files.RunFileError):
        getattr(experiment, flags.schedule)()


def _explain(flags: absl_flags.FlagValues, spec: RunSpec) -> None:
    """Prints how the training program is laid out, and writes a page into output_dir."""
    with as_usage_error(ValueError, LookupError, OSError):
        experiment = _experiment(flags, spec)
    with building(spec.model):
        explanation = experiment.explain()
    print(explanation)
    path = Path(spec.config.output_dir, "layout.html")
    with as_usage_error(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        explanation.save(path)
    logging.info("drawn in %s", path)


def _check(spec: RunSpec) -> None:
    """Compares the run's layout with one device, and prints the result."""
    # Imported here, because a training needs no checks.
    from t2tp.trainer.layout_check import check_run_layout

    with building(spec.model):
        compared = check_run_layout(spec)
    print(compared)
    if not compared.check.agrees:
        raise FailedError("the layout does not compute what one device computes")


def _with_prepared_data(flags: absl_flags.FlagValues, spec: RunSpec) -> RunSpec:
    """Returns the spec with the hparams that depend on the data, such as `bos_token_id`."""
    # With `auto`, a search has found the mesh and the layout: keep its result.
    mesh = {name: spec.hparams.get(name) for name in run_yaml.MESH}
    return replace(spec, hparams=hparams_to_print(flags).with_values(mesh))


def _experiment(flags: absl_flags.FlagValues, spec: RunSpec) -> Experiment:
    return Experiment(
        spec,
        decode_options=DecodeOptions(
            beam_size=1, temperature=flags.decode_temperature, batch_size=1
        ),
        hooks=[registry.hook(name)(spec) for name in flags.hooks],
    )
