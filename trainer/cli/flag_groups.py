"""The flags and arguments of a program: defined in groups, parsed, and printed by `--help`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import NamedTuple

from absl import flags

from t2tp.suggestions import nearest, similar
from t2tp.trainer.cli.tensor2tensor_flags import advice
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.local_paths import check_local

_WIDTH = 100
# Flags that are paths: suffixes of their names, and other names.
_PATHS = ("_dir", "_file", "_path", "_reference")
_MORE_PATHS = (
    "checkpoints",
    "from_hf",
    "to_hf",
    "hparams_set",
    "log_json",
    "reference",
    "translation",
    "warm_start_from",
)


class Group(NamedTuple):
    """Flags about one subject.

    Attributes:
      heading: in the help.
      define: defines the flags in a holder.
    """

    heading: str
    define: Callable[[flags.FlagValues], None]


class Positional(NamedTuple):
    """An argument that is not a flag.

    Attributes:
      name: in help and messages, as in PATH.
      help: its description.
      is_optional: whether it may be omitted.
      takes_rest: whether everything after it belongs to it, even if it begins with a dash.
    """

    name: str
    help: str
    is_optional: bool = False
    takes_rest: bool = False


def define(groups: Sequence[Group]) -> flags.FlagValues:
    """Defines flags in a new holder, apart from the flags of other modules."""
    holder = flags.FlagValues()
    for group in (*groups, _ANSWERS):
        group.define(holder)
    return holder


def _define_answers(holder: flags.FlagValues) -> None:
    flags.DEFINE_bool("help", False, "Print this and exit.", short_name="h", flag_values=holder)
    flags.DEFINE_bool(
        "helpfull", False, "Print this and exit: there are no other flags.", flag_values=holder
    )
    flags.DEFINE_bool("version", False, "Print the version and exit.", flag_values=holder)


_ANSWERS = Group("Help", _define_answers)


def version() -> str:
    """Returns the output of `--version`, the same in all programs."""
    return f"t2tp {metadata.version('t2tp')}"


def check_given(given: flags.FlagValues, names: Sequence[str]) -> None:
    """Checks that no flag is missing.

    Raises:
      UsageError: a flag is missing; the message names the first.
    """
    for name in names:
        if not given[name].value:
            raise UsageError(f"--{name} is missing")


def parse(
    groups: Sequence[Group], command_line: Sequence[str], positional: Sequence[Positional] = ()
) -> tuple[flags.FlagValues, list[str]]:
    """Parses a command line.

    Args:
      groups: of the program's flags.
      command_line: with the program's name first.
      positional: the arguments of the program other than flags.

    Returns:
      The flags and the arguments.

    Raises:
      UsageError: a flag is unknown, its value is invalid, or there are too many arguments.
    """
    holder = define(groups)
    takes_rest = any(each.takes_rest for each in positional)
    holder.set_gnu_getopt(not takes_rest)
    try:
        arguments = holder(command_line)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UsageError(_unknown_flag(error.flagname, holder)) from error
    except flags.IllegalFlagValueError as error:
        raise UsageError(_wrong_value(error, holder)) from error
    except (flags.Error, ValueError) as error:
        raise UsageError(str(error)) from error
    for name in holder:
        _check_value(name, holder[name].value)
    if len(arguments) > len(positional) and not takes_rest:
        raise UsageError(
            f"{arguments[len(positional)]!r} is neither a flag (--name=value) nor an argument:"
            f" {_usage(positional)}"
        )
    # Aliases of --help are not flags of the run, which saves the values of its flags.
    holder.help = holder.help or holder.helpfull
    for spelling in ("h", "helpfull"):
        delattr(holder, spelling)
    return holder, arguments


def check_arguments(arguments: Sequence[str], positional: Sequence[Positional]) -> None:
    """Checks that no argument is missing.

    Raises:
      UsageError: an argument is missing; the message names the first.
    """
    for each in positional[len(arguments) :]:
        if not each.is_optional:
            expected = each.help[0].lower() + each.help[1:].removesuffix(".")
            raise UsageError(f"{each.name} is missing: {expected}")


def _usage(positional: Sequence[Positional]) -> str:
    names = [f"[{each.name}]" if each.is_optional else each.name for each in positional]
    return f"the arguments are {' '.join(names)}" if names else "the program takes flags only"


def _unknown_flag(name: str, holder: flags.FlagValues) -> str:
    """Returns the error about an unknown flag."""
    advised = advice(name)
    if advised:
        return f"unknown flag {name!r}. {advised}"
    near = similar(name, holder)
    if not near:
        return f"unknown flag {name!r}: --help lists the flags"
    return f"unknown flag {name!r}: did you mean {', '.join(map(_dashed, near))}?"


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _wrong_value(error: flags.IllegalFlagValueError, holder: flags.FlagValues) -> str:
    """Returns the error about an invalid value, from absl's error."""
    given = str(error).removeprefix("flag ").removesuffix(f": {error.__context__}")
    name, _, value = given.removeprefix("--").partition("=")
    flag = holder[name]
    if isinstance(flag, flags.EnumFlag):
        return f"{given}: {nearest(value, flag.parser.enum_values, 'values')}"
    expected = "true or false" if flag.boolean else flag.parser.syntactic_help
    return f"{given}: expected {expected}"


def _check_value(name: str, value: object) -> None:
    """Raises UsageError for invalid values that the flag's type accepts."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"--{name}={value}: a finite number is wanted")
    if isinstance(value, str) and (name.endswith(_PATHS) or name in _MORE_PATHS):
        with as_usage_error(ValueError):
            check_local(f"--{name}", value)


def help_text(intro: str, groups: Sequence[Group], positional: Sequence[Positional] = ()) -> str:
    """Formats the output of `--help`: all arguments and flags, group by group.

    Args:
      intro: what the program does, with typical command lines.
      groups: of its flags.
      positional: its other arguments.
    """
    lines = [intro.strip()]
    if positional:
        lines += ["", "Arguments:", *(_line(each.name, each.help) for each in positional)]
    for group in (*groups, _ANSWERS):
        holder = flags.FlagValues()
        group.define(holder)
        lines += ["", f"{group.heading}:"]
        lines += [_flag_line(holder[name]) for name in holder if holder[name].name == name]
    return "\n".join(lines)


def _flag_line(flag: flags.Flag) -> str:
    short = f"-{flag.short_name}, " if flag.short_name else ""
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
    default = "" if flag.default in (None, "", []) else f" (default: {flag.default})"
    return _line(short + name, " ".join(flag.help.split()) + default)


def _line(name: str, help: str) -> str:
    return textwrap.fill(
        f"{name}  {help}",
        _WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
    )
