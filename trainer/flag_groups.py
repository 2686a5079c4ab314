"""The flags of a program, in groups: defined, read, and explained by `--help`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import NamedTuple

from absl import flags

from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.local_paths import check_local
from t2tp.trainer.tensor2tensor_flags import advice

_WIDTH = 100
# Which flags are paths: by the ends of their names, and others.
_PATHS = ("_dir", "_file", "_path", "_reference")
_MORE_PATHS = ("warm_start_from", "log_json", "hparams_set", "translation", "reference")


class Group(NamedTuple):
    """Flags about one subject.

    Attributes:
      heading: the subject.
      define: adds the flags to a holder.
    """

    heading: str
    define: Callable[[flags.FlagValues], None]


def define(groups: Sequence[Group]) -> flags.FlagValues:
    """Defines flags, with a holder of their own: no other module's flags get among them."""
    ours = flags.FlagValues()
    for group in groups:
        group.define(ours)
    _define_answers(ours)
    return ours


def _define_answers(ours: flags.FlagValues) -> None:
    flags.DEFINE_bool("help", False, "Print this, and leave; -h as well.", flag_values=ours)
    flags.DEFINE_bool("version", False, "Print the version, and leave.", flag_values=ours)


def answered(given: flags.FlagValues, intro: str, groups: Sequence[Group]) -> bool:
    """Prints what `--help` and `--version` ask for; returns whether one of them was given."""
    if given.help:
        print(help_text(intro, groups))
    elif given.version:
        print(version())
    return given.help or given.version


def version() -> str:
    """What `--version` prints, in all programs."""
    return f"t2tp {metadata.version('t2tp')}"


def check_given(given: flags.FlagValues, names: Sequence[str]) -> None:
    """Refuses a command line that lacks one of the flags.

    Raises:
      UsageError: names the first that is missing.
    """
    for name in names:
        if not given[name].value:
            raise UsageError(f"--{name} is missing")


def parse(groups: Sequence[Group], arguments: Sequence[str]) -> flags.FlagValues:
    """Reads a command line.

    Args:
      groups: of the program's flags.
      arguments: with the program's name first.

    Raises:
      UsageError: a flag is unknown or its value wrong, or an argument is no flag.
    """
    ours = define(groups)
    try:
        rest = ours(["--help" if each == "-h" else each for each in arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        advised = advice(error.flagname)
        said = f"Unknown command line flag {error.flagname!r}. {advised}" if advised else str(error)
        raise UsageError(said) from error
    except flags.Error as error:
        raise UsageError(str(error)) from error
    if rest:
        raise UsageError(f"{rest[0]!r} is no flag; flags are written --name=value")
    for name in ours:
        _check_value(name, ours[name].value)
    return ours


def _check_value(name: str, value: object) -> None:
    """Refuses values that the flag's type lets through."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"--{name}={value}: a finite number is wanted")
    if isinstance(value, str) and (name.endswith(_PATHS) or name in _MORE_PATHS):
        with as_usage_error(ValueError):
            check_local(f"--{name}", value)


def help_text(intro: str, groups: Sequence[Group]) -> str:
    """What `--help` prints: a line for each flag, group by group.

    Args:
      intro: what the program does, and how it is called most often.
      groups: of its flags.
    """
    lines = [intro.strip()]
    for group in (*groups, Group("Help", _define_answers)):
        holder = flags.FlagValues()
        group.define(holder)
        lines += ["", f"{group.heading}:", *(_line(holder[name]) for name in holder)]
    return "\n".join(lines)


def _line(flag: flags.Flag) -> str:
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
    default = "" if flag.default in (None, "", []) else f" (default: {flag.default})"
    help = " ".join(flag.help.split())
    return textwrap.fill(
        f"{name}  {help}{default}",
        _WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
    )
