"""Programs as people type them, in this process."""

import shlex
from pathlib import Path

import pytest

from t2tp.toml import tomllib
from t2tp.trainer.cli import programs


def flags_of(flags: dict[str, object]) -> list[str]:
    """Returns the words of flags by name; a flag of None is omitted."""
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def call(program: str, *arguments: object, **flags: object) -> int:
    """Runs a program and returns its exit code."""
    return getattr(programs, program)([program, *map(str, arguments), *flags_of(flags)])


def mistakes(program: str) -> pytest.MarkDecorator:
    """Parametrizes a test with the wrong `flags` of `mistakes.toml`, and what a program `says`."""
    table = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))[program]

    def flags(words: str) -> dict[str, str | None]:
        pairs = [word.split("=", 1) for word in shlex.split(words)]
        return {name: value or None for name, value in pairs}

    cases = [(flags(words), says) for words, says in table.items()]
    return pytest.mark.parametrize(("flags", "says"), cases, ids=table)
