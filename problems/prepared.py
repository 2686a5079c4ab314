"""Data that have been made: whether they are whole, and the command that makes them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from t2tp.problems import manifest
from t2tp.problems.manifest import DamagedDataError, Manifest
from t2tp.problems.user_dir import imported_user_dirs

if TYPE_CHECKING:
    from t2tp.problems.problem import AnyPath, Problem


def check(problem: Problem, data_dir: AnyPath) -> Manifest:
    """Checks that the data are there and whole; see `Problem.check_prepared`."""
    folder = problem.folder(data_dir)
    command = problem.datagen_command(data_dir)
    if not folder.exists():
        raise FileNotFoundError(
            f"{folder} does not exist: make the data of {problem.name} with\n  {command}"
        )
    with _saying_the_command(problem, command):
        made = Manifest.read(folder)
        made.check(folder)
    given = problem.given_options
    for name, value in made.options.items():
        if name in given and given[name] != value:
            raise ValueError(
                f"the data in {folder} were made with {name}={value}, not {given[name]}: leave "
                f"the option out, or make the data again with\n  {command} --overwrite"
            )
    return made


def check_contents(problem: Problem, data_dir: AnyPath, num_workers: int) -> Manifest:
    """Checks every byte of the data; see `Problem.check_contents`."""
    made = check(problem, data_dir)
    with _saying_the_command(problem, problem.datagen_command(data_dir)):
        made.check_contents(problem.folder(data_dir), num_workers, problem.name)
    return made


@contextmanager
def _saying_the_command(problem: Problem, command: str) -> Iterator[None]:
    try:
        yield
    except DamagedDataError as error:
        raise DamagedDataError(
            f"the data of {problem.name} are damaged: {error}\n"
            f"make them again with\n  {command} --overwrite"
        ) from error


def datagen_command(problem: Problem, data_dir: AnyPath) -> str:
    """Returns the command that makes the data; see `Problem.datagen_command`."""
    words = ["t2tp_datagen", f"--problem={problem.name}", f"--data_dir={data_dir}"]
    package = type(problem).__module__.partition(".")[0]
    words += [f"--t2t_usr_dir={path}" for path in imported_user_dirs() if path.name == package]
    defaults = problem.default_made_with()
    recorded = manifest.read_options(problem.folder(data_dir))
    options = {
        name: value
        for name, value in recorded.items()
        if name in defaults and value != defaults[name]
    } | problem.given_options
    if options:
        written = ",".join(f"{name}={_as_option(value)}" for name, value in options.items())
        words.append(f"--problem_options={written}")
    return shlex.join(words)


def _as_option(value: Any) -> str:
    """Writes a value as options have it: text with commas in quotes."""
    return repr(value) if isinstance(value, str) and "," in value else str(value)
