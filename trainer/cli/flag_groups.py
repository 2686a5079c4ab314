"""The flags and arguments of a program: read from `flags.toml`, parsed, and printed by `--help`."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from t2tp.hparam_types import ValueType
from t2tp.object_store.mirror import local_path
from t2tp.object_store.store import is_address, without_secrets
from t2tp.suggestions import nearest, similar
from t2tp.toml import read_packaged
from t2tp.trainer.cli import config_file
from t2tp.trainer.errors import UsageError, as_usage_error, sentence
from t2tp.trainer.local_paths import check_local

_WIDTH = 100
_MAX = 10**12

_DEFINE: dict[str, Callable[..., Any]] = {
    "text": flags.DEFINE_string,
    "path": flags.DEFINE_string,
    "address": flags.DEFINE_string,
    "bool": flags.DEFINE_bool,
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "list": flags.DEFINE_list,
    "repeated": flags.DEFINE_multi_string,
    "choice": flags.DEFINE_enum,
}
_INT = ValueType(int)
_EMPTY = {"bool": False, "repeated": []}


class FlagGroup(NamedTuple):
    """Flags about one subject.

    Attributes:
      heading: title in the help.
      rows: rows of `flags.toml`, by flag.
    """

    heading: str
    rows: Mapping[str, Mapping[str, Any]]

    def without(self, *names: str) -> FlagGroup:
        """Returns the group without the named flags, for a program in which they have no effect."""
        return self._replace(rows={k: row for k, row in self.rows.items() if k not in names})

    def define(self, holder: flags.FlagValues) -> None:
        """Defines the flags in a holder."""
        for name, row in self.rows.items():
            kind = "choice" if "choices" in row else row.get("type", "text")
            default = row.get("default", _EMPTY.get(kind))
            options = {"flag_values": holder, "short_name": row.get("short")}
            if kind == "choice":
                options["enum_values"] = row["choices"]
            if kind in ("int", "float"):
                options |= {"lower_bound": row["min"], "upper_bound": row.get("max", _MAX)}
            _DEFINE[kind](name, None if default == "auto" else default, help="", **options)
            if kind == "int":
                # Like --hparams and YAML, which also have integers such as 1e5.
                parser: Any = holder[name].parser
                parser.convert = lambda given: _INT.read("", str(given))
            choices = f" One of {', '.join(row['choices'])}." if "choices" in row else ""
            holder[name].help = row["help"] + choices


class Positional(NamedTuple):
    """An argument that is not a flag.

    Attributes:
      name: name in help and messages, such as PATH.
      takes_rest: whether it consists of the rest of the command line, flags included.
      groups: the flags of the program that gets the arguments after --, if there is such a program.
    """

    name: str
    help: str
    is_optional: bool = False
    takes_rest: bool = False
    groups: Sequence[FlagGroup] = ()


@functools.cache
def all_groups() -> dict[str, FlagGroup]:
    """Returns groups of flags by their names in `flags.toml`."""
    found = read_packaged(__package__, "flags.toml")
    return {name: FlagGroup(table.pop("heading"), table) for name, table in found.items()}


def define(groups: Sequence[FlagGroup]) -> flags.FlagValues:
    """Defines flags in a new holder, and not in absl's global `FLAGS`."""
    holder = flags.FlagValues()
    for group in (*groups, all_groups()["help"]):
        group.define(holder)
    return holder


def check_given(given: flags.FlagValues, names: Sequence[str]) -> None:
    """Raises UsageError for the first flag that is missing."""
    for name in names:
        if not given[name].value:
            raise UsageError(f"--{name} is missing")


def parse(
    groups: Sequence[FlagGroup], command_line: Sequence[str], positional: Sequence[Positional] = ()
) -> tuple[flags.FlagValues, list[str]]:
    """Parses a command line, and the file of its --config; returns the flags and the arguments.

    The command line, which begins with the program's name, overrides the flags in the file.

    Raises:
      UsageError: a flag is unknown or has no effect, its value is invalid, or there are too many
        arguments.
    """
    holder = define(groups)
    rows = {name: row for group in groups for name, row in group.rows.items()}
    takes_rest = any(each.takes_rest for each in positional)
    holder.set_gnu_getopt(not takes_rest)
    with _explained(holder, positional):
        arguments = holder(command_line)[1:]
    given = [name for name in rows if holder[name].present]
    if "config" in given:
        in_file = define(groups)
        try:
            with _explained(in_file, positional):
                path = local_path(os.path.expanduser(holder.config))
                config_file.set_flags(in_file, rows, path, given)
                _apply_aliases(in_file, rows)
            _check_conditions(in_file, rows, [name for name in rows if in_file[name].present])
        except UsageError as error:
            at = "" if path in str(error) else f"{holder.config}: "
            at = "--config=" if str(error).startswith(path) else at
            raise UsageError(f"{at}{error}") from error
        for name in rows:
            if in_file[name].present and name not in given:
                holder[name].value, holder[name].present = in_file[name].value, 1
    with _explained(holder, positional):
        _apply_aliases(holder, rows)
    for name, row in rows.items():
        value = holder[name].value
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"--{name}={value}: expected a finite number")
        if row.get("type") in ("path", "address") and value:
            # Shells expand ~ in --data_dir ~/data, but not in --data_dir=~/data.
            value = ",".join(map(os.path.expanduser, str(value).split(",")))
            with as_usage_error(ValueError, OSError):
                if row["type"] == "path" or not is_address(value):
                    check_local(f"--{name}", value)
                if row["type"] == "address":
                    # Lazy: a problem's data are downloaded when they are first read.
                    value = local_path(value, is_lazy=name == "data_dir")
            holder[name].value = value
    _check_conditions(holder, rows, given)
    if len(arguments) > len(positional) and not takes_rest:
        names = [f"[{each.name}]" if each.is_optional else each.name for each in positional]
        usage = f"arguments are {' '.join(names)}" if names else "program takes flags only"
        raise UsageError(
            f"{without_secrets(arguments[len(positional)])!r} is neither a flag (--name=value) nor"
            f" an argument: the {usage}"
        )
    with as_usage_error(ValueError, OSError):
        if not takes_rest:
            arguments = [local_path(os.path.expanduser(each)) for each in arguments]
    # The aliases of --help are removed, because a run saves its flags.
    holder.help = holder.help or holder.helpfull
    for spelling in ("h", "helpfull"):
        delattr(holder, spelling)
    return holder, arguments


def _apply_aliases(holder: flags.FlagValues, rows: Mapping[str, Mapping[str, Any]]) -> None:
    for name in [name for name, row in rows.items() if "aliases" in row]:
        holder(["", *rows[name]["aliases"].get(holder[name].value, ())])


def _check_conditions(
    holder: flags.FlagValues, rows: Mapping[str, Mapping[str, Any]], given: Sequence[str]
) -> None:
    """Raises UsageError if one of the given flags has no effect."""
    for name in given:
        needs, excludes = (rows[name].get(key, ()) for key in ("needs", "excludes"))
        if needs and not any(_holds(each, holder) for each in needs):
            alternatives = " or ".join(f"--{each.replace('|', ' or ')}" for each in needs)
            raise UsageError(f"--{name} has no effect here: it is for {alternatives}")
        for other in filter(lambda other: _holds(other, holder), excludes):
            raise UsageError(f"give either --{name} or --{other}, not both")


@contextlib.contextmanager
def _explained(holder: flags.FlagValues, positional: Sequence[Positional]) -> Iterator[None]:
    """Converts errors of flags to `UsageError`s with suggestions."""
    try:
        yield
    except flags.UnrecognizedFlagError as error:
        raise UsageError(_unknown_flag(error, holder, positional)) from error
    except flags.IllegalFlagValueError as error:
        raise UsageError(_wrong_value(error, holder)) from error
    except (flags.Error, ValueError, OSError) as error:
        raise UsageError(sentence(error)) from error


def _holds(condition: str, holder: flags.FlagValues) -> bool:
    """Whether a condition of `needs` or `excludes` holds.

    The condition `flag` holds if the flag is given, `flag=a|b` if the flag's value is a or b.
    """
    name, _, values = condition.partition("=")
    value = holder[name].value
    return value in values.split("|") if values else bool(value)


def check_arguments(arguments: Sequence[str], positional: Sequence[Positional]) -> None:
    """Raises UsageError for the first argument that is missing."""
    for each in positional[len(arguments) :]:
        if not each.is_optional:
            expected = each.help[0].lower() + each.help[1:].removesuffix(".")
            raise UsageError(f"{each.name} is missing: {expected}")


def _unknown_flag(
    error: flags.UnrecognizedFlagError, holder: flags.FlagValues, positional: Sequence[Positional]
) -> str:
    """Returns the error about an unknown flag, and suggests what to write instead."""
    name, sentence = error.flagname, f"unknown flag {error.flagname!r}"
    value = error.flagvalue.partition("=")[2] or "VALUE"
    for inner in [define(each.groups) for each in positional if each.groups]:
        if name in inner or name in _hparams(inner):
            return f"{sentence}: write {_spelled(name, value, inner)} after --"
    advised = advice(name)
    if advised:
        return f"{sentence}. {advised}"
    if name in _hparams(holder):
        return f"{sentence}: write {_spelled(name, value, holder)}"
    near = similar(name, [*holder, *_hparams(holder)])
    if not near:
        return f"{sentence}: --help lists the flags"
    return f"{sentence}: did you mean {', '.join(_spelled(n, value, holder) for n in near)}?"


def _hparams(holder: flags.FlagValues) -> set[str]:
    """Returns the names of all hparams if the program has the flag --hparams."""
    if "hparams" not in holder:
        return set()
    return set().union(*read_packaged("t2tp.hparams", "declarations.toml").values())


def _spelled(name: str, value: str, holder: flags.FlagValues) -> str:
    """Returns a flag, or an hparam with its value, as written on a command line."""
    if name not in holder:
        return f"--hparams={name}={value}"
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


def help_text(
    intro: str, groups: Sequence[FlagGroup], positional: Sequence[Positional] = ()
) -> str:
    """Formats the output of `--help`: the intro, then all arguments and flags, group by group."""
    lines = [intro.strip()]
    if positional:
        lines += ["", "Arguments:", *(_line(each.name, each.help) for each in positional)]
    holder = define(groups)
    for group in (*groups, all_groups()["help"]):
        lines += ["", f"{group.heading}:", *(_flag_line(holder[name]) for name in group.rows)]
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


_HPARAM = "hp_"
_STARTS = {"removed": "t2tp does not have this flag of tensor2tensor", "replaced": "Use"}


@functools.cache
def flag_table() -> dict[str, tuple[str, str]]:
    """Returns (kind, note) by flag; `tensor2tensor_flags.toml` explains them."""
    table = read_packaged(__package__, "tensor2tensor_flags.toml")
    return {name: (kind, " ".join(note)) for name, (kind, *note) in table.items()}


def advice(flag: str) -> str:
    """Returns advice on a flag that only tensor2tensor has; "" for any other flag.

    `flag` has no dashes; a boolean flag may begin with "no".
    """
    if flag.startswith(_HPARAM):
        return f"Hyperparameters are written --hparams={flag.removeprefix(_HPARAM)}=VALUE."
    table = flag_table()
    kind, note = table.get(flag) or table.get(flag.removeprefix("no")) or ("", "")
    return f"{_STARTS[kind]}: {note.replace('`', '')}." if kind in _STARTS else ""
