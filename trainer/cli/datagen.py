"""`t2tp_datagen`: generates the data of a problem, or checks or shows existing data."""

import shlex

from absl import flags as absl_flags

from t2tp import problems, registry
from t2tp.problems.inspection.report import inspect
from t2tp.problems.prepare.preparable import WrongOptionError
from t2tp.problems.prepare.settings import BeamSettings
from t2tp.problems.problem import Problem
from t2tp.trainer.errors import FailedError, Interrupted, UsageError, as_usage_error


def run(flags: absl_flags.FlagValues) -> None:
    """Generates, checks or shows the data, and prints a summary."""
    problem = _problem(flags)
    try:
        print(_carry_out(problem, flags))
    except WrongOptionError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        raise
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise FailedError(str(error)) from error
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; start it again to resume after the finished shards"
        ) from None


def _problem(flags: absl_flags.FlagValues) -> Problem:
    """Looks up the problem that the flags name."""
    options = flags.problem_options
    if flags.vocab_size is not None:
        options += f"{',' if options else ''}vocab_size={flags.vocab_size}"
    with as_usage_error(registry.UnknownNameError, ValueError, OSError):
        return problems.find(flags.problem, options)


def _carry_out(problem: Problem, flags: absl_flags.FlagValues) -> str:
    """Performs the action that the flags choose and returns its report."""
    if flags.inspect:
        return inspect(problem, flags.data_dir)
    if flags.check:
        data = problem.check_contents(flags.data_dir, flags.num_workers or 1)
        return f"{problem.name}: every byte is as it was written\n{data.summary()}"
    beam = None
    if flags.beam_runner:
        beam = BeamSettings(flags.beam_runner, shlex.split(flags.beam_pipeline_options))
    data = problem.prepare(
        flags.data_dir,
        flags.tmp_dir,
        flags.overwrite,
        num_shards=flags.num_shards,
        num_workers=flags.num_workers,
        max_bad_samples=flags.max_bad_samples,
        beam=beam,
    )
    return f"{problem.name} is ready in {problem.directory(flags.data_dir)}\n{data.summary()}"
