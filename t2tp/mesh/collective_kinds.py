"""Kinds of collectives: how much each member sends, and in how many messages.

A kind is registered once. `Collectives` logs its collectives by their kind, and the layout report
and the planner read what the kind declares. This is an exchange in which each member sends its
whole tensor to the next member:

    SHIFT = register(CollectiveKind("shift", lambda size: 1, one_message))
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from t2tp.suggestions import check_known


@dataclass(frozen=True)
class CollectiveKind:
    """A kind of collective.

    Attributes:
      name: name in logs and reports.
      sent_bytes: maps the size of a group to the bytes that a member sends for each byte of its
        input.
      messages: maps the number of units at each level of links (devices of a host, hosts of a rack,
        and so on) to the number of successive messages at each level: `ring`, `tree` or
        `one_message`.
      is_direct: whether a member sends to every other member, so that each level of links carries
        only a part of the bytes. Otherwise all bytes cross the slowest level.
    """

    name: str
    sent_bytes: Callable[[int], float]
    messages: Callable[[Sequence[int]], Sequence[int]]
    is_direct: bool = False


_kinds: dict[str, CollectiveKind] = {}


def register(kind: CollectiveKind) -> CollectiveKind:
    """Registers a kind under its name, and returns it.

    Raises:
      ValueError: another kind has the name.
    """
    if _kinds.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"two kinds of collectives are named {kind.name!r}: rename one")
    return kind


def collective_kind(name: str) -> CollectiveKind:
    """Returns the kind of a name.

    Raises:
      ValueError: no kind has the name; the error suggests similar names.
    """
    check_known(name, _kinds, "kinds", f"unknown kind of collective {name!r}")
    return _kinds[name]


def ring(units: Sequence[int]) -> list[int]:
    """Returns the messages if data pass from each unit to the next, through all units."""
    return [count - 1 for count in units]


def tree(units: Sequence[int]) -> list[int]:
    """Returns the messages if the number of units that have the data doubles in each round."""
    return [math.ceil(math.log2(count)) for count in units]


def one_message(units: Sequence[int]) -> list[int]:
    """Returns one message, which crosses the outermost level."""
    return [0] * (len(units) - 1) + [1]


def _up_and_down(units: Sequence[int]) -> list[int]:
    return [2 * count for count in tree(units)]


def _others_share(size: int) -> float:
    return (size - 1) / size


def _reduced_and_spread(size: int) -> float:
    return 2 * _others_share(size)


ALL_GATHER = register(CollectiveKind("allgather", lambda size: size - 1, ring))
ALL_REDUCE = register(CollectiveKind("allreduce", _reduced_and_spread, _up_and_down))
ALL_TO_ALL = register(CollectiveKind("alltoall", _others_share, tree, is_direct=True))
# An all-reduce to which the other members contribute zeros.
BROADCAST = register(CollectiveKind("broadcast", _reduced_and_spread, _up_and_down))
PERMUTE = register(CollectiveKind("permute", lambda size: 1, one_message))
REDUCE_SCATTER = register(CollectiveKind("reducescatter", _others_share, ring))
