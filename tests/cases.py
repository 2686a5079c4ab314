"""Cases of parametrized tests."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from t2tp.toml import tomllib


def in_turn(first: Iterable[object], second: Iterable[object], times: int = 1) -> list[tuple]:
    """Pairs each element of `first` with the next `times` elements of `second`, in rotation.

    The pairs cover both lists in a fraction of the time of all pairs. Tuples are concatenated.
    """
    others = list(second)
    pairs = [
        (one, others[(n * times + k) % len(others)])
        for n, one in enumerate(first)
        for k in range(times)
    ]
    return [(*_members(one), *_members(other)) for one, other in pairs]


def _members(case: object) -> Sequence[object]:
    return case if isinstance(case, tuple) else (case,)


def mistakes(
    what: str, name: str = "text", parse: Callable[[str], object] = str
) -> pytest.MarkDecorator:
    """Parametrizes a test with wrong texts of `mistakes.toml` and what is said, as `says`."""
    table = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))[what]
    cases = [(parse(text), says) for text, says in table.items()]
    return pytest.mark.parametrize((name, "says"), cases, ids=table)
