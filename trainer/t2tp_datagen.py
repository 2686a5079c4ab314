"""Makes the data of a problem.

    t2tp_datagen --problem=languagemodel_python_stdlib --data_dir=data

If they are there already it only checks them. An interrupted run leaves nothing that looks
complete; start it again. Exit code 2: the flags are wrong, and nothing was touched. Exit code 1:
the data could not be made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from absl import app, flags, logging

import t2tp.problems  # noqa: F401  (registers the problems)
from t2tp import registry
from t2tp.problems.problem import Problem


def main() -> None:
    """Runs the program on the command line's flags."""
    # TensorFlow's start-up lines say nothing about the data.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _define_flags()
    app.run(_make, flags_parser=_parse)


def _define_flags() -> None:
    flags.DEFINE_string("problem", None, "Name of the problem.", required=True)
    flags.DEFINE_string(
        "data_dir", None, "Folder of all data; the problem gets its own in it.", required=True
    )
    flags.DEFINE_string("tmp_dir", None, "Folder where downloads stay; by default they do not.")
    flags.DEFINE_bool("overwrite", False, "Make the data again although they are there.")

    # What --help prints: the docstring and flags of the module that the command line runs, which
    # is the console script and not this one.
    sys.modules["__main__"].__doc__ = __doc__
    for name in ("problem", "data_dir", "tmp_dir", "overwrite"):
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
    problem = _problem(flags.FLAGS.problem)
    data_dir = flags.FLAGS.data_dir
    try:
        manifest = problem.prepare(data_dir, flags.FLAGS.tmp_dir, flags.FLAGS.overwrite)
    except (OSError, ValueError) as error:
        _end(error, code=1)
    print(f"{problem.name} is ready in {problem.folder(data_dir)}\n{manifest.summary()}")


def _problem(name: str) -> Problem:
    try:
        return registry.problem(name)()
    except registry.UnknownNameError as error:
        _end(error, code=2)


def _end(error: object, code: int) -> NoReturn:
    print(f"t2tp_datagen: {error}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
