"""A process that times samples: on several virtual devices, or with other processes.

    python -m t2tp.trainer.calibration.worker '{"devices": 2, "groups": [2], "computes": true}'

Prints a line of JSON: `curves` and `collectives`, as cluster files have them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import t2tp
from t2tp import mtf
from t2tp.mesh.layout import Layout
from t2tp.planner.curves import Curve, seconds_at
from t2tp.planner.lowered import LoweredStep
from t2tp.planner.work import COMPUTE_BOUND
from t2tp.processes.cluster import Cluster
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Mesh, Program
from t2tp.trainer.calibration.disturbance import Watch
from t2tp.trainer.calibration.samples import (
    COLLECTIVE_SIZES,
    COLLECTIVES,
    SAMPLES,
    CollectiveSample,
    Sample,
    collective_layout,
)

_FED = {"one": np.zeros([1], np.float32)}
_FEATURES = {"one": t2tp.Feature("one:1")}
# Seconds that the operations of a program are to take: as long as a step, so that its tensors are
# as rarely in a cache.
_WANTED, _MOST_OPERATIONS = 0.12, 96
# Calls are timed in blocks, until one is not disturbed: others use less than a share of the cores.
_REPETITIONS, _BLOCK_SECONDS, _QUIET, _BLOCKS = 4, 0.15, 0.05, 3


def main() -> int:
    """Measures what the argument says."""
    wanted = json.loads(sys.argv[1])
    devices, processes = wanted["devices"], wanted.get("processes", 1)
    several = {
        "num_processes": processes,
        "process_id": wanted.get("rank", 0),
        "coordinator": wanted.get("coordinator"),
    }
    cluster = t2tp.connect(devices, **(several if processes > 1 else {}))
    timed = Timed(cluster)
    curves = _curves(timed, devices) if wanted.get("computes") else []
    collectives = [
        {
            "kind": kind,
            "group": group,
            "devices": devices,
            "processes": processes,
            "points": _collective(timed, kind, group),
        }
        for group in wanted["groups"]
        for kind in COLLECTIVES
    ]
    print(json.dumps({"curves": curves, "collectives": collectives}))
    return 0


class Timed:
    """Times programs of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._empty: dict[str, _Call] = {}

    @property
    def devices(self) -> int:
        """Number of devices of all processes."""
        return len(self._cluster.devices)

    def seconds(
        self, build: Callable[[Mesh, int], mtf.Tensor], count: int, layout: Layout
    ) -> tuple[float, float]:
        """Returns the seconds of a program's operations, and their relative spread."""
        if layout.mesh_text not in self._empty:
            self._empty[layout.mesh_text] = self._call(_nothing, 0, layout)
        return _difference(self._call(build, count, layout), self._empty[layout.mesh_text])

    def _call(self, build: Callable[[Mesh, int], mtf.Tensor], count: int, layout: Layout) -> _Call:
        is_alone = len(self._cluster.local_pnums) == len(self._cluster.devices)
        return _Call(self._program(build, count, layout), is_alone)

    def _program(
        self, build: Callable[[Mesh, int], mtf.Tensor], count: int, layout: Layout
    ) -> Program:
        def step(mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
            return {"last": mtf.reduce_sum(build(mesh, count))}

        return Program(step, _FEATURES, layout=layout, cluster=self._cluster)


def _nothing(mesh: Mesh, count: int) -> mtf.Tensor:
    return mtf.get_variable(mesh, "nothing", mtf.Shape([]))


class _Call:
    """Calls of a program, of which the least disturbed count."""

    def __init__(self, program: Program, is_alone: bool) -> None:
        self._program, self._is_alone = program, is_alone
        self._fed = program.place(_FED)
        for _ in range(2):
            self._seconds()

    def _seconds(self) -> float:
        begin = time.perf_counter()
        float(self._program(self._fed)["last"])
        return time.perf_counter() - begin

    def times(self) -> list[float]:
        """Returns the seconds of some calls, of the block of them that has the shortest.

        A block counts as undisturbed, and is the last, if others used hardly any of the cores. What
        others use when the cores would idle, at a lower priority, disturbs nothing: therefore the
        seconds of calls count as they are, and the shortest of all. Several processes make the same
        number of calls, whatever happens.
        """
        blocks: list[list[float]] = []
        while len(blocks) < _BLOCKS:
            watch = Watch()
            taken = [self._seconds() for _ in range(_REPETITIONS)]
            while self._is_alone and sum(taken) < _BLOCK_SECONDS:
                taken.append(self._seconds())
            blocks.append(taken)
            if self._is_alone and watch.others() < _QUIET:
                break
        return min(blocks, key=min)


def _difference(program: _Call, empty: _Call) -> tuple[float, float]:
    """Returns what a call takes longer than one of another program, and its relative spread.

    Of each the shortest call counts; the spread is the distance of the lower quartile.
    """
    taken = program.times()
    low = min(taken)
    quartile, *_ = statistics.quantiles(taken, n=4)
    return max(low - min(empty.times()), 1e-7), quartile / low - 1


def _curves(timed: Timed, devices: int) -> list[dict[str, Any]]:
    """Measures each kind of work, on all devices at once."""
    layout = Layout(f"all:{devices}" if devices > 1 else "", "")
    known: dict[str, Curve] = {}
    for sample in SAMPLES:
        points = [_point(timed, sample, size, layout, known) for size in sample.sizes]
        known[sample.kind] = Curve(sample.kind, devices, _growing(points))
    return [
        {"kind": kind, "devices": devices, "points": curve.points} for kind, curve in known.items()
    ]


def _point(
    timed: Timed, sample: Sample, size: int, layout: Layout, known: Mapping[str, Curve]
) -> tuple[float, float, float]:
    """Measures operations of a size: as many as are long enough to be timed."""

    def build(mesh: Mesh, count: int) -> mtf.Tensor:
        return sample.build(mesh, size, count)

    few, _ = timed.seconds(build, 2, layout)
    count = max(2, min(_MOST_OPERATIONS, round(2 * _WANTED / few)))
    seconds, spread = timed.seconds(build, count, layout)
    number, total, others = _work(sample, size, count, layout, known)
    return total / number, max(seconds - others, seconds / 10) / number, spread


def _work(
    sample: Sample, size: int, count: int, layout: Layout, known: Mapping[str, Curve]
) -> tuple[int, float, float]:
    """Returns number and total size of a sample's operations, and the seconds of the others."""

    def step(mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        return {"last": sample.build(mesh, size, count)}

    program = AbstractProgram(step, _FEATURES, layout=layout)
    number, total, others = 0, 0.0, 0.0
    for work, times in LoweredStep.from_program(program).work.items():
        if work.kind == sample.kind:
            number += times
            total += times * (work.flops if work.kind in COMPUTE_BOUND else work.num_bytes)
        elif work.kind in known:
            each = work.flops if work.kind in COMPUTE_BOUND else work.num_bytes
            others += times * seconds_at(known[work.kind].points, each)[0]
    return number, total, others


def _collective(timed: Timed, kind: str, group: int) -> list[tuple[float, float, float]]:
    layout = collective_layout(timed.devices, group)
    points = []
    for numbers in COLLECTIVE_SIZES:

        def build(mesh: Mesh, count: int, numbers: int = numbers) -> mtf.Tensor:
            shape = mtf.Shape([mtf.Dimension("numbers", numbers)])
            x = mtf.get_variable(mesh, "x", shape)
            return CollectiveSample(x, kind, count).outputs[0]

        # All processes take the same number.
        count = 16 if numbers < 1 << 12 else 4
        seconds, spread = timed.seconds(build, count, layout)
        points.append((4.0 * numbers, seconds / count, spread))
    return list(_growing(points))


def _growing(points: Sequence[tuple[float, float, float]]) -> tuple:
    """Smaller sizes do not take longer: what is left of noise."""
    made: list[tuple[float, float, float]] = []
    for size, seconds, spread in reversed(sorted(points)):
        made.append((size, min(seconds, made[-1][1]) if made else seconds, spread))
    return tuple(reversed(made))


if __name__ == "__main__":
    sys.exit(main())
