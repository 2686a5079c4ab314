"""Tensors of layers that are alike are said once: `layer_{00..11}/attention/q`."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from t2tp.explanation.causes import GRADIENTS

T = TypeVar("T")

_NUMBER = re.compile(r"\d+")
_MOST_LISTED = 4


@dataclass(frozen=True)
class Alike(Generic[T]):
    """Things that differ in nothing but the numbers of their layers.

    Attributes:
      name: stands for all of them, such as `layer_{00..11}/attention/q`.
      members: one or more, in their order.
    """

    name: str
    members: tuple[T, ...]

    @property
    def first(self) -> T:
        """One for all."""
        return self.members[0]

    @property
    def times(self) -> str:
        """How many they are, to stand behind the name; empty for one."""
        return f" x {len(self.members)}" if len(self.members) > 1 else ""


def alike(
    things: Iterable[T], name: Callable[[T], str], rest: Callable[[T], Hashable]
) -> list[Alike[T]]:
    """Groups things, in the order of each group's first.

    Args:
      things: to be grouped.
      name: of a thing; its scopes may differ in their numbers, and no more.
      rest: what must be equal besides.
    """
    groups: dict[Hashable, list[T]] = {}
    for thing in things:
        groups.setdefault((without_numbers(name(thing)), rest(thing)), []).append(thing)
    return [Alike(common_name([name(m) for m in group]), tuple(group)) for group in groups.values()]


def without_numbers(name: str) -> str:
    """The name with the numbers of its scopes left out; the numbers of operations and variables
    stay."""
    return "".join(_NUMBER.sub("#", part) if is_scope else part for part, is_scope in _parts(name))


def common_name(names: Sequence[str]) -> str:
    """A name that stands for names which differ in the numbers of their scopes."""
    if len(names) == 1:
        return names[0]
    columns = []
    for parts in zip(*(list(_parts(name)) for name in names), strict=True):
        if parts[0][1]:
            columns.append(_common_scope([part for part, _ in parts]))
        else:
            columns.append(parts[0][0])
    return "".join(columns)


def _parts(name: str) -> list[tuple[str, bool]]:
    """The name cut in pieces, and for each whether it is made of scopes."""
    pieces: list[tuple[str, bool]] = []
    for number, each in enumerate(name.split(GRADIENTS)):
        scopes, slash, last = each.rpartition("/")
        pieces += [(GRADIENTS if number else "", False), (scopes + slash, True), (last, False)]
    return pieces


def _common_scope(scopes: Sequence[str]) -> str:
    """`layer_00/`, `layer_01/` -> `layer_{00..01}/`."""
    between = _NUMBER.split(scopes[0])
    numbers = zip(*(_NUMBER.findall(scope) for scope in scopes), strict=True)
    said = [_some(sorted(set(column), key=int)) for column in numbers]
    return "".join(a + b for a, b in zip(between, [*said, ""], strict=True))


def _some(numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    if len(numbers) <= _MOST_LISTED:
        return f"{{{','.join(numbers)}}}"
    return f"{{{','.join(numbers[:_MOST_LISTED])},...}}"
