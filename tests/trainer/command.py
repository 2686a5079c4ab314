"""Programs as people type them, in this process."""

import shlex

import pytest

from t2tp.trainer.cli import programs
from tests.cases import mistakes


def flags_of(flags: dict[str, object]) -> list[str]:
    """Returns the words of flags by name; a flag of None is omitted."""
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def call(program: str, *arguments: object, **flags: object) -> int:
    """Runs a program and returns its exit code."""
    return getattr(programs, program)([program, *map(str, arguments), *flags_of(flags)])


def refused(capture: pytest.CaptureFixture, program: str, *arguments: object, **flags) -> str:
    """Checks that a program refuses its command line in one sentence, and returns the sentence."""
    capture.readouterr()
    assert call(program, *arguments, **flags) == 2
    said = capture.readouterr()
    assert said.out == "" and said.err.startswith(f"{program}: ")
    assert len(said.err.splitlines()) == 1
    return said.err


def wrong_flags(program: str) -> pytest.MarkDecorator:
    """Parametrizes a test with the wrong `flags` of `mistakes.toml` and what a program `says`."""

    def parse(words: str) -> dict[str, str | None]:
        pairs = [word.split("=", 1) for word in shlex.split(words)]
        return {name: value or None for name, value in pairs}

    return mistakes(program, "flags", parse)
