"""Measured seconds of operations and collectives by size, as in cluster files."""

# This import makes the types of fields text, as cluster_file.py expects.
from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from t2tp.step.kernels import key
from t2tp.step.work import COMPUTE_BOUND, MEMORY_BOUND

# Kinds of collectives that are measured; see `CollectiveKind.measured_as` for the others.
COLLECTIVE_KINDS = ("allreduce", "reducescatter", "allgather", "alltoall", "permute")
# Limit of the relative spread of a point; a larger measured spread counts as this limit.
MOST_SPREAD = 1.0

# Size (FLOPs if they bound the operation, otherwise bytes), seconds, and relative spread.
Point: TypeAlias = "tuple[float, float, float]"


@dataclass(frozen=True)
class Curve:
    """Seconds of one operation on a device, while other devices of its host compute too.

    Attributes:
      devices: number of devices of the host that computed at the same time.
    """

    kind: str = key(choices=(*COMPUTE_BOUND, *MEMORY_BOUND))
    devices: int = key(min=1)
    points: tuple[Point, ...] = key()


@dataclass(frozen=True)
class CollectiveCurve:
    """Seconds of one collective that runs in all groups of a host at once.

    Attributes:
      kind: see `t2tp.mesh.collective_kinds`.
      group: number of members of each group.
      devices: number of devices in all groups.
      processes: number of processes that run these devices.
      points: see `Point`; the size is the bytes of a member's input.
    """

    kind: str = key(choices=COLLECTIVE_KINDS)
    group: int = key(min=2)
    devices: int = key(min=2)
    processes: int = key(min=1)
    points: tuple[Point, ...] = key()


def seconds_at(points: Sequence[Point], size: float) -> tuple[float, float]:
    """Interpolates between measured sizes.

    Between two points, seconds grow linearly. Below the first point they are constant. Beyond the
    last point they grow as between the last two points; with one point, in proportion to the size.

    Returns:
      Seconds, and their relative spread, which is at most `MOST_SPREAD`.
    """
    sizes = [point[0] for point in points]
    i = bisect_left(sizes, size)
    if i == 0 or len(points) == 1:
        _, seconds, spread = points[0]
        grown = max(1.0, size / sizes[0]) if len(points) == 1 else 1.0
        return seconds * grown, min(spread, MOST_SPREAD)
    (low, fast, spread), (high, slow, other) = points[min(i, len(points) - 1) - 1 :][:2]
    rate = max(0.0, slow - fast) / (high - low)
    if i == len(points):
        # The difference of the last two points may be noise, so the growth is at least half of the
        # last point's seconds per size.
        rate = max(rate, slow / high / 2)
        return slow + rate * (size - high), min(other, MOST_SPREAD)
    return fast + rate * (size - low), min(max(spread, other), MOST_SPREAD)


def share_at(points: Sequence[Point], size: float, keys: float) -> float:
    """Interpolates the shares of a kernel of attention; see `AttentionKernel`."""
    i = min(max(1, bisect_left([point[0] for point in points], size)), len(points) - 1)
    (low, share, ramp), (high, other, other_ramp) = points[max(0, i - 1)], points[i]
    part = min(1.0, max(0.0, (size - low) / (high - low))) if high > low else 0.0
    ramp += part * (other_ramp - ramp)
    return (share + part * (other - share)) * keys / (keys + ramp)


def curve_for(curves: Iterable[Curve], kind: str, devices: int) -> Curve | None:
    """Returns the curve of a kind for the largest number of devices up to `devices`.

    If all curves have more devices, returns the curve with the fewest devices. Without curves,
    returns None.
    """
    found = [curve for curve in curves if curve.kind == kind]
    fewer = [curve for curve in found if curve.devices <= devices]
    if fewer:
        return max(fewer, key=lambda curve: curve.devices)
    return min(found, key=lambda curve: curve.devices, default=None)


def collective_curve_for(
    curves: Iterable[CollectiveCurve], kind: str, group: int, devices: int, processes: int
) -> CollectiveCurve | None:
    """Returns the curve that was measured with the most similar groups; None if there is none."""
    across = processes > 1
    found = [c for c in curves if c.kind == kind and (c.processes > 1) == across]

    def distance(curve: CollectiveCurve) -> tuple[float, float]:
        by_group = abs(math.log(curve.group / group))
        return by_group, abs(math.log(curve.devices / max(devices, 1)))

    return min(found, key=distance, default=None)
