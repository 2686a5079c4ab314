r"""A process that times samples on several virtual devices, or together with other processes.

    python -m t2tp.trainer.calibration.worker \
        '{"devices": 2, "groups": [2], "computes": true, "rank": 0}'

Prints a line after each point, and then a line of JSON: `curves` and `collectives` as in cluster
files, and `disturbed`.
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
from t2tp.planner.curves import COLLECTIVE_KINDS, Curve, seconds_at
from t2tp.planner.lowered import LoweredStep
from t2tp.planner.work import COMPUTE_BOUND
from t2tp.processes.cluster import Cluster
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Mesh, Program
from t2tp.trainer.calibration.disturbance import Watch
from t2tp.trainer.calibration.machine import POINT, QUIET
from t2tp.trainer.calibration.samples import (
    COLLECTIVE_SIZES,
    SAMPLES,
    CollectiveSample,
    Sample,
    collective_layout,
)

_FED = {"one": np.zeros([1], np.float32)}
_FEATURES = {"one": t2tp.Feature("one:1")}
# Seconds that the operations of a program take. As in a step, tensors are then rarely in a cache.
_WANTED, _MOST_OPERATIONS = 0.12, 96
# Calls are timed in blocks, until others use less than a fraction of the cores in one of them.
_REPETITIONS, _BLOCK_SECONDS, _BLOCKS = 4, 0.15, 3

Build = Callable[[Mesh, int], mtf.Tensor]


def main() -> int:
    """Measures as the argument says."""
    wanted = json.loads(sys.argv[1])
    devices, processes = wanted["devices"], wanted.get("processes", 1)
    several = {
        "num_processes": processes,
        "process_id": wanted["rank"],
        "coordinator": wanted.get("coordinator"),
    }
    timed = Timed(t2tp.connect(devices, **(several if processes > 1 else {})))
    curves = _curves(timed, devices) if wanted["computes"] else []
    collectives = [
        {
            "kind": kind,
            "group": group,
            "devices": devices,
            "processes": processes,
            "points": _collective(timed, kind, group),
        }
        for group in wanted["groups"]
        for kind in COLLECTIVE_KINDS
    ]
    found = {"curves": curves, "collectives": collectives, "disturbed": timed.disturbed}
    print(json.dumps(found), flush=True)
    return 0


class Timed:
    """Times programs of one cluster.

    Attributes:
      disturbed: fraction of the cores that other programs used, by point.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_alone = len(cluster.local_pnums) == len(cluster.devices)
        self._empty: dict[str, float] = {}
        self.disturbed: list[float] = []

    @property
    def devices(self) -> int:
        """Number of devices of all processes."""
        return len(self._cluster.devices)

    def seconds(self, build: Build, count: int, layout: Layout) -> tuple[float, float]:
        """Returns the seconds of a program's operations, and their relative spread.

        The shortest call counts. The spread is its distance to the lower quartile, or more if
        others used the cores: with half of them, a call may take twice its time.
        """
        if layout.mesh_text not in self._empty:
            self._empty[layout.mesh_text] = min(self._times(_nothing, 0, layout)[0])
        taken, others = self._times(build, count, layout)
        low = min(taken)
        quartile, *_ = statistics.quantiles(taken, n=4)
        disturbance = others / max(1 - others, 0.1) if others > QUIET else 0.0
        self.disturbed.append(others)
        return max(low - self._empty[layout.mesh_text], 1e-7), max(quartile / low - 1, disturbance)

    def _times(self, build: Build, count: int, layout: Layout) -> tuple[list[float], float]:
        """Times calls in blocks.

        Several processes make the same number of calls, however busy the machine is.

        Returns:
          the seconds of the block with the shortest call, and the fraction of the cores that others
          used meanwhile.
        """

        def step(mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
            return {"last": mtf.reduce_sum(build(mesh, count))}

        program = Program(step, _FEATURES, layout=layout, cluster=self._cluster)
        fed = program.place(_FED)

        def call() -> float:
            begin = time.perf_counter()
            float(program(fed)["last"])
            return time.perf_counter() - begin

        return best_block(call, self._is_alone)


def best_block(call: Callable[[], float], is_alone: bool) -> tuple[list[float], float]:
    """Repeats a call that returns its seconds; see `Timed`."""
    for _ in range(2):
        call()
    blocks: list[tuple[list[float], float]] = []
    while len(blocks) < _BLOCKS:
        watch = Watch()
        taken = [call() for _ in range(_REPETITIONS)]
        while is_alone and sum(taken) < _BLOCK_SECONDS:
            taken.append(call())
        blocks.append((taken, watch.others()))
        if is_alone and blocks[-1][1] < QUIET:
            break
    return min(blocks, key=lambda block: min(block[0]))


def _nothing(mesh: Mesh, count: int) -> mtf.Tensor:
    return mtf.get_variable(mesh, "nothing", mtf.Shape([]))


def _note_point() -> None:
    print(POINT, flush=True)


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
    """Measures operations of a size, enough of them to be timed."""

    def build(mesh: Mesh, count: int) -> mtf.Tensor:
        return sample.build(mesh, size, count)

    few, _ = timed.seconds(build, 2, layout)
    count = max(2, min(_MOST_OPERATIONS, round(2 * _WANTED / few)))
    seconds, spread = timed.seconds(build, count, layout)
    number, total, others = _work(sample, size, count, layout, known)
    _note_point()
    return total / number, max(seconds - others, seconds / 10) / number, spread


def _work(
    sample: Sample, size: int, count: int, layout: Layout, known: Mapping[str, Curve]
) -> tuple[int, float, float]:
    """Returns number and total size of a sample's operations, and the seconds of its others."""

    def step(mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        return {"last": sample.build(mesh, size, count)}

    program = AbstractProgram(step, _FEATURES, layout=layout)
    number, total, others = 0, 0.0, 0.0
    for work, times in LoweredStep.from_program(program).work.items():
        each = work.flops if work.kind in COMPUTE_BOUND else work.num_bytes
        if work.kind == sample.kind:
            number, total = number + times, total + times * each
        elif work.kind in known:
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

        count = 16 if numbers < 1 << 12 else 4
        seconds, spread = timed.seconds(build, count, layout)
        _note_point()
        points.append((4.0 * numbers, seconds / count, spread))
    return list(_growing(points))


def _growing(points: Sequence[tuple[float, float, float]]) -> tuple:
    """Removes noise: a smaller size takes at most the seconds of a larger one."""
    made: list[tuple[float, float, float]] = []
    for size, seconds, spread in reversed(sorted(points)):
        made.append((size, min(seconds, made[-1][1]) if made else seconds, spread))
    return tuple(reversed(made))


if __name__ == "__main__":
    sys.exit(main())
