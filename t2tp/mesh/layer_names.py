"""The layer to which a name belongs, and patterns of names: `layer_{00..11}/attention/q`."""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# mtf.gradients appends this scope to an operation's name, for the operation's gradients.
GRADIENTS = "/gradients/"

_LAYER = re.compile(r"^(?:[^/]*/)*?[^/]*\d+(?=/)")
_NUMBER = re.compile(r"\d+")
_MAX_LISTED = 4


def layer_of(name: str) -> str:
    """Returns the layer of a variable or an operation: "layer_3" of "layer_3/ffn/w".

    The layer is the name up to the first scope that ends in a number. If there is no such scope,
    the result is "". Gradients belong to the layer of the differentiated operation.
    """
    found = _LAYER.match(name.partition(GRADIENTS)[0])
    return found[0] if found else ""


@dataclass(frozen=True)
class LayerGroup(Generic[T]):
    """Items that differ only in their layer indices.

    `name` is a pattern of all names, such as `layer_{00..11}/attention/q`.
    """

    name: str
    members: tuple[T, ...]

    @property
    def first(self) -> T:
        """The first member, as an example of all."""
        return self.members[0]

    @property
    def times(self) -> str:
        """A suffix such as ` x 12`; empty for one member."""
        return f" x {len(self.members)}" if len(self.members) > 1 else ""


def group_layers(
    items: Iterable[T], name: Callable[[T], str], key: Callable[[T], Hashable]
) -> list[LayerGroup[T]]:
    """Groups items by name and key, in the order of their first members.

    The numbers in a name's scopes are ignored.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault((without_layer_indices(name(item)), key(item)), []).append(item)
    return [
        LayerGroup(common_name([name(m) for m in group]), tuple(group)) for group in groups.values()
    ]


def without_layer_indices(name: str) -> str:
    """Replaces the numbers in a name's scopes by #; the last component keeps its numbers."""
    return "".join(_NUMBER.sub("#", part) if is_scope else part for part, is_scope in _parts(name))


def common_name(names: Sequence[str]) -> str:
    """Returns one pattern for names that differ only in the numbers of their scopes."""
    if len(names) == 1:
        return names[0]
    return "".join(
        _common_scope([part for part, _ in parts]) if parts[0][1] else parts[0][0]
        for parts in zip(*map(_parts, names), strict=True)
    )


def _parts(name: str) -> list[tuple[str, bool]]:
    """Splits a name into pieces, each with a flag: whether it consists of scopes."""
    pieces: list[tuple[str, bool]] = []
    for number, each in enumerate(name.split(GRADIENTS)):
        scopes, slash, last = each.rpartition("/")
        pieces += [(GRADIENTS if number else "", False), (scopes + slash, True), (last, False)]
    return pieces


def _common_scope(scopes: Sequence[str]) -> str:
    """Returns one pattern for scopes: `layer_00/`, `layer_01/` -> `layer_{00..01}/`."""
    between = _NUMBER.split(scopes[0])
    numbers = zip(*(_NUMBER.findall(scope) for scope in scopes), strict=True)
    ranges = [_range(sorted(set(column), key=int)) for column in numbers]
    return "".join(a + b for a, b in zip(between, [*ranges, ""], strict=True))


def _range(numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    if len(numbers) <= _MAX_LISTED:
        return f"{{{','.join(numbers)}}}"
    return f"{{{','.join(numbers[:_MAX_LISTED])},...}}"
