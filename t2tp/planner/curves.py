"""Measured seconds of operations and collectives over their size, as cluster files have them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

# Size (FLOPs of what is bound by them, else bytes), seconds, and the relative spread of these.
Point: TypeAlias = "tuple[float, float, float]"


@dataclass(frozen=True)
class Curve:
    """Seconds of one operation on a device while others of its host compute, too.

    Attributes:
      kind: of work.
      devices: of the host that computed at the same time.
      points: by size.
    """

    kind: str
    devices: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class CollectiveCurve:
    """Seconds of one collective of all groups of a host at once.

    Attributes:
      kind: see `t2tp.mesh.collectives.Collective`.
      group: members of each group.
      devices: in all groups.
      processes: that the devices are in.
      points: by the bytes that a member puts in.
    """

    kind: str
    group: int
    devices: int
    processes: int
    points: tuple[Point, ...]


def seconds_at(points: Sequence[Point], size: float) -> tuple[float, float]:
    """Interpolates between measured sizes.

    Between two points seconds are a constant and a part that grows with the size. Below the first,
    they are those of the first; beyond the last, they grow as between the last two.

    Returns:
      seconds, and their relative spread.
    """
    sizes = [point[0] for point in points]
    i = bisect_left(sizes, size)
    if i == 0 or len(points) == 1:
        _, seconds, spread = points[0]
        grown = max(1.0, size / sizes[0]) if len(points) == 1 else 1.0
        return seconds * grown, spread
    (low, fast, spread), (high, slow, other) = points[min(i, len(points) - 1) - 1 :][:2]
    rate = max(0.0, slow - fast) / (high - low)
    if i == len(points):
        # What was measured last tells more of larger sizes than a difference does.
        rate = max(rate, slow / high / 2)
        return slow + rate * (size - high), other
    return fast + rate * (size - low), max(spread, other)


def curve_for(curves: Iterable[Curve], kind: str, devices: int) -> Curve | None:
    """Returns the curve of a kind that was measured with as many devices, or with fewer."""
    found = [curve for curve in curves if curve.kind == kind]
    fewer = [curve for curve in found if curve.devices <= devices]
    if fewer:
        return max(fewer, key=lambda curve: curve.devices)
    return min(found, key=lambda curve: curve.devices, default=None)


def collective_curve_for(
    curves: Iterable[CollectiveCurve], kind: str, group: int, devices: int, processes: int
) -> CollectiveCurve | None:
    """Returns the curve that was measured with the most similar groups."""
    across = processes > 1
    found = [c for c in curves if c.kind == kind and (c.processes > 1) == across]

    def distance(curve: CollectiveCurve) -> tuple[float, float]:
        by_group = abs(math.log(curve.group / group))
        return by_group, abs(math.log(curve.devices / max(devices, 1)))

    return min(found, key=distance, default=None)
