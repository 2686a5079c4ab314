"""The programs, which `programs.toml` declares, and their entry points."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from t2tp.toml import read_packaged
from t2tp.trainer.cli.flag_groups import FlagGroup, Positional, all_groups
from t2tp.trainer.cli.run_program import ProgramSpec, run_program

PROGRAMS: dict[str, ProgramSpec] = {}


def _groups(texts: Sequence[str]) -> tuple[FlagGroup, ...]:
    """Returns groups of flags; "mesh -xla" is the group `mesh` without the flag `xla`."""
    rows = (text.split(" -") for text in texts)
    return tuple(all_groups()[name].without(*without) for name, *without in rows)


def _positional(row: dict[str, Any]) -> Positional:
    program = row.pop("groups", None)
    return Positional(**row, groups=PROGRAMS[program].groups if program else ())


for _name, _row in read_packaged(__package__, "programs.toml").items():
    _row["groups"] = _groups(_row["groups"])
    _row["positional"] = [*map(_positional, _row.pop("positional", ()))]
    PROGRAMS[_name] = ProgramSpec(_name, **_row)


def __getattr__(name: str) -> Callable[..., int]:
    """Returns the entry point of a program, for the scripts in pyproject.toml."""
    if name not in PROGRAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(run_program, PROGRAMS[name])
