"""Checks data that have been made, and composes the command that makes them."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from t2tp.problems.data import manifest
from t2tp.problems.data.manifest import DamagedDataError, Manifest
from t2tp.problems.user_dir import imported_user_dirs

# Option values that need no quotes.
_PLAIN = re.compile(r"[\w./*?:~+%@-]+")


def check(name: str, directory: Path, given_options: Mapping[str, Any], command: str) -> Manifest:
    """Checks that data exist and are undamaged; see `Problem.check_prepared`.

    Errors advise the user to run `command`, which makes the data.
    """
    if not directory.exists():
        if (directory.parent / manifest.FILE_NAME).exists():
            raise FileNotFoundError(
                f"data_dir={directory.parent} is the directory of one problem's data: name the"
                f" directory that contains it, --data_dir={directory.parent.parent}"
            )
        raise FileNotFoundError(
            f"{directory} does not exist: make the data of {name} with\n  {command}"
        )
    with advising(name, command):
        stored = Manifest.read(directory)
        stored.check(directory)
    for option, value in stored.options.items():
        if option in given_options and given_options[option] != value:
            raise ValueError(
                f"the data in {directory} were made with {option}={value}, not "
                f"{given_options[option]}: leave the option out, or make the data again with\n"
                f"  {command} --overwrite"
            )
    return stored


@contextmanager
def advising(name: str, command: str) -> Iterator[None]:
    """Adds the command that makes the data again to errors about damage."""
    try:
        yield
    except DamagedDataError as error:
        raise DamagedDataError(
            f"the data of {name} are damaged: {error}\n"
            f"make them again with\n  {command} --overwrite"
        ) from error


def datagen_command(
    name: str,
    package: str,
    data_dir: str | PathLike[str],
    directory: Path,
    default_options: Mapping[str, Any],
    given_options: Mapping[str, Any],
) -> str:
    """Returns the command that makes data; see `Problem.datagen_command`.

    If `package` is a user's directory, the command imports it. The command has the options that are
    recorded in `directory` with existing data, and the options that were given.
    """
    words = ["t2tp_datagen", f"--problem={name}", f"--data_dir={data_dir}"]
    words += [f"--t2t_usr_dir={path}" for path in imported_user_dirs() if path.name == package]
    recorded = manifest.read_options(directory)
    options = {
        option: value
        for option, value in recorded.items()
        if option in default_options and value != default_options[option]
    } | dict(given_options)
    if options:
        written = ",".join(f"{option}={_as_option(value)}" for option, value in options.items())
        words.append(f"--problem_options={written}")
    return shlex.join(words)


def _as_option(value: Any) -> str:
    """Formats a value for an option string; quotes text with special characters."""
    is_plain = not isinstance(value, str) or _PLAIN.fullmatch(value)
    return str(value) if is_plain else repr(value)
