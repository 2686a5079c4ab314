"""Makes the data of a problem.

    t2tp_datagen --problem=languagemodel_python_stdlib --data_dir=data

If they are there already it only checks them. An interrupted run leaves nothing that looks
complete; start it again, and it goes on with what was finished. --inspect shows what was made.
Exit code 2: the flags are wrong, and nothing was touched. Exit code 1: the data could not be made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from absl import app, flags, logging

from t2tp import problems, registry
from t2tp.problems.generation import default_workers
from t2tp.problems.inspection import inspect
from t2tp.problems.problem import Problem
from t2tp.problems.user_dir import import_user_dir

_NAMES = (
    "problem",
    "problem_options",
    "data_dir",
    "tmp_dir",
    "t2t_usr_dir",
    "num_shards",
    "num_workers",
    "max_bad_samples",
    "vocab_size",
    "overwrite",
    "check",
    "inspect",
)


def main() -> None:
    """Runs the program on the command line's flags."""
    # TensorFlow's start-up lines say nothing about the data.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _define_flags()
    app.run(_make, flags_parser=_parse)


def _define_flags() -> None:
    flags.DEFINE_string("problem", None, "Name of the problem.", required=True)
    flags.DEFINE_string(
        "problem_options", "", "Its options, as in 'files=texts/**/*.txt,documents=lines'."
    )
    flags.DEFINE_string(
        "data_dir", None, "Folder of all data; the problem gets its own in it.", required=True
    )
    flags.DEFINE_string("tmp_dir", None, "Folder where downloads stay; by default they do not.")
    flags.DEFINE_string("t2t_usr_dir", None, "Folder of your own problems.")
    flags.DEFINE_integer(
        "num_shards",
        None,
        "Parts that the train split is stored in; by default one for each 500 samples, up to 64.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "num_workers", default_workers(), "Most processes that encode.", lower_bound=1
    )
    flags.DEFINE_integer(
        "max_bad_samples",
        None,
        "Samples that cannot be used are left out up to this number; by default one in 1,000.",
        lower_bound=0,
    )
    flags.DEFINE_integer("vocab_size", None, "Tokens of the vocabulary.", lower_bound=1)
    flags.DEFINE_bool("overwrite", False, "Make the data again although they are there.")
    flags.DEFINE_bool("check", False, "Check every byte of data that are there.")
    flags.DEFINE_bool(
        "inspect", False, "Show examples, lengths and the share of padding of data that are there."
    )

    # What --help prints: the docstring and flags of the module that the command line runs, which
    # is the console script and not this one.
    sys.modules["__main__"].__doc__ = __doc__
    for name in _NAMES:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        _end(error, code=2)
    if len(rest) > 1:
        _end(f"not a flag: {' '.join(rest[1:])}; flags are written --problem=NAME", code=2)
    return rest


def _make(argv: Sequence[str]) -> None:
    del argv
    logging.set_verbosity(logging.INFO)
    given = flags.FLAGS
    problem = _problem()
    try:
        if given.inspect:
            print(inspect(problem, given.data_dir))
            return
        if given.check:
            manifest = problem.check_contents(given.data_dir, given.num_workers)
            print(f"{problem.name}: every byte is what was written\n{manifest.summary()}")
            return
        manifest = problem.prepare(
            given.data_dir,
            given.tmp_dir,
            given.overwrite,
            num_shards=given.num_shards,
            num_workers=given.num_workers,
            max_bad_samples=given.max_bad_samples,
        )
    except (OSError, ValueError, ModuleNotFoundError) as error:
        _end(error, code=1)
    except KeyboardInterrupt:
        _end("interrupted; started again it goes on with what was finished", code=1)
    print(f"{problem.name} is ready in {problem.folder(given.data_dir)}\n{manifest.summary()}")


def _problem() -> Problem:
    """The problem that the flags name."""
    given = flags.FLAGS
    options = given.problem_options
    if given.vocab_size is not None:
        options += f"{',' if options else ''}vocab_size={given.vocab_size}"
    try:
        if given.t2t_usr_dir:
            import_user_dir(given.t2t_usr_dir)
        return problems.find(given.problem, options)
    except (registry.UnknownNameError, ValueError, OSError) as error:
        _end(error, code=2)


def _end(error: object, code: int) -> NoReturn:
    print(f"t2tp_datagen: {error}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
