"""The programs, which `programs.toml` declares, and their entry points."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from t2tp.trainer.cli import tables
from t2tp.trainer.cli.flag_groups import Group, Positional, groups
from t2tp.trainer.cli.run_program import ProgramSpec, run_program

PROGRAMS: dict[str, ProgramSpec] = {}


def _groups(texts: Sequence[str]) -> tuple[Group, ...]:
    """Returns groups of flags; "mesh -xla" is the group `mesh` without the flag `xla`."""
    rows = (text.split(" -") for text in texts)
    return tuple(groups(name)[0].without(*without) for name, *without in rows)


def _positional(row: dict[str, Any]) -> Positional:
    program = row.pop("groups", None)
    return Positional(**row, groups=PROGRAMS[program].groups if program else ())


for _name, _row in tables.read("programs.toml").items():
    _row["groups"] = _groups(_row["groups"])
    _row["positional"] = [*map(_positional, _row.pop("positional", ()))]
    PROGRAMS[_name] = ProgramSpec(_name, **_row)

# The entry points, which pyproject.toml names.
t2tp_trainer = partial(run_program, PROGRAMS["t2tp_trainer"])
t2tp_datagen = partial(run_program, PROGRAMS["t2tp_datagen"])
t2tp_launch = partial(run_program, PROGRAMS["t2tp_launch"])
t2tp_eval = partial(run_program, PROGRAMS["t2tp_eval"])
t2tp_replay = partial(run_program, PROGRAMS["t2tp_replay"])
t2tp_decoder = partial(run_program, PROGRAMS["t2tp_decoder"])
t2tp_exporter = partial(run_program, PROGRAMS["t2tp_exporter"])
t2tp_avg_checkpoints = partial(run_program, PROGRAMS["t2tp_avg_checkpoints"])
t2tp_convert = partial(run_program, PROGRAMS["t2tp_convert"])
t2tp_inspect_checkpoint = partial(run_program, PROGRAMS["t2tp_inspect_checkpoint"])
t2tp_bleu = partial(run_program, PROGRAMS["t2tp_bleu"])
t2tp_tune = partial(run_program, PROGRAMS["t2tp_tune"])
t2tp_plan = partial(run_program, PROGRAMS["t2tp_plan"])
t2tp_calibrate = partial(run_program, PROGRAMS["t2tp_calibrate"])
