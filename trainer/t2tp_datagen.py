"""`t2tp_datagen`: makes the data of a problem, or looks at those that are there."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from absl import flags

from t2tp import problems, registry
from t2tp.problems.inspection import inspect
from t2tp.problems.problem import Problem, WrongOptionError
from t2tp.problems.user_dir import import_user_dir
from t2tp.quiet import quiet_import
from t2tp.trainer import console, flag_groups
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.flag_groups import Group
from t2tp.trainer.t2tp_trainer import SIGNALLED, WRONG_USAGE

_INTRO = """
t2tp_datagen makes the data of a problem:

    t2tp_datagen --problem=languagemodel_python_stdlib --data_dir=data

If they are there already it only checks them. An interrupted run leaves nothing that looks
complete; start it again, and it goes on with what was finished. --inspect shows what was made.
Exit code 2: the flags are wrong, and nothing was touched. Exit code 1: the data could not be made.
Exit code 130: interrupted.
"""

_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line, with the program's name first; by default this process's.

    Returns:
      the exit code.
    """
    try:
        return _run(sys.argv if arguments is None else arguments)
    except KeyboardInterrupt:
        said = "interrupted; started again it goes on with what was finished"
        return _say(said, SIGNALLED + signal.SIGINT)


def _run(arguments: Sequence[str]) -> int:
    """Does it all, and returns the exit code."""
    try:
        given = flag_groups.parse(_GROUPS, arguments)
        if flag_groups.answered(given, _INTRO, _GROUPS):
            return 0
        with as_usage_error(flags.Error):
            flags.mark_flags_as_required(["problem", "data_dir"], flag_values=given)
            given.validate_all_flags()
        console.use_plain_lines()
        problem = _problem(given)
    except UsageError as error:
        return _say(error, WRONG_USAGE)
    try:
        print(_carry_out(problem, given))
    except WrongOptionError as error:
        return _say(error, WRONG_USAGE)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        return _say(error, _FAILED)
    return 0


def _define_what(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "problem",
        None,
        "Name of a problem: a registered one, tfds:NAME or mixture:...",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "problem_options",
        "",
        "Its options, as in 'files=texts/**/*.txt,documents=lines'.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "vocab_size", None, "Tokens of the vocabulary.", lower_bound=1, flag_values=ours
    )
    flags.DEFINE_string("t2t_usr_dir", None, "Folder of your own problems.", flag_values=ours)


def _define_where(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "data_dir", None, "Folder of all data; the problem gets its own in it.", flag_values=ours
    )
    flags.DEFINE_string(
        "tmp_dir", None, "Folder where downloads stay; by default they do not.", flag_values=ours
    )


def _define_how(ours: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "overwrite", False, "Make the data again although they are there.", flag_values=ours
    )
    flags.DEFINE_integer(
        "num_shards",
        None,
        "Parts that the train split is stored in; by default one for each 500 samples, up to 64.",
        lower_bound=1,
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "num_workers",
        None,
        "Most processes that encode; by default as many as are worth it, up to one for each core.",
        lower_bound=1,
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "max_bad_samples",
        None,
        "Samples that cannot be used are left out up to this number; by default one in 1,000.",
        lower_bound=0,
        flag_values=ours,
    )


def _define_look(ours: flags.FlagValues) -> None:
    flags.DEFINE_bool("check", False, "Check every byte of data that are there.", flag_values=ours)
    flags.DEFINE_bool(
        "inspect",
        False,
        "Show examples, lengths and the share of padding of data that are there.",
        flag_values=ours,
    )


_GROUPS = (
    Group("What is made", _define_what),
    Group("Where", _define_where),
    Group("How", _define_how),
    Group("Looking at what was made", _define_look),
)


def _problem(given: flags.FlagValues) -> Problem:
    """The problem that the flags name."""
    options = given.problem_options
    if given.vocab_size is not None:
        options += f"{',' if options else ''}vocab_size={given.vocab_size}"
    with as_usage_error(registry.UnknownNameError, ValueError, OSError):
        if given.t2t_usr_dir:
            with quiet_import():  # it may import TensorFlow
                import_user_dir(given.t2t_usr_dir)
        return problems.find(given.problem, options)


def _carry_out(problem: Problem, given: flags.FlagValues) -> str:
    """Does what the flags say, and returns what there is to say of it."""
    if given.inspect:
        return inspect(problem, given.data_dir)
    if given.check:
        made = problem.check_contents(given.data_dir, given.num_workers or 1)
        return f"{problem.name}: every byte is what was written\n{made.summary()}"
    made = problem.prepare(
        given.data_dir,
        given.tmp_dir,
        given.overwrite,
        num_shards=given.num_shards,
        num_workers=given.num_workers,
        max_bad_samples=given.max_bad_samples,
    )
    return f"{problem.name} is ready in {problem.folder(given.data_dir)}\n{made.summary()}"


def _say(error: object, code: int) -> int:
    print(f"t2tp_datagen: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
