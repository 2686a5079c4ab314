r"""A process that measures operations and collectives, alone or with other processes.

    python -m t2tp.trainer.calibration.worker \
        '{"devices": 2, "groups": [2], "computes": true, "connect": {}}'

A point is the time of an operation or a collective of one size. The process prints a line after
each point, and then a line of JSON: `curves` and `collectives` as in cluster files, and
`disturbed`.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

import t2tp
from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.mesh.layout import Layout
from t2tp.planner.curves import COLLECTIVE_KINDS, Point, seconds_at
from t2tp.processes.cluster import Cluster
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Program, StepFn
from t2tp.step.lowered import LoweredStep
from t2tp.step.work import COMPUTE_BOUND
from t2tp.trainer.calibration.disturbance import Watch
from t2tp.trainer.calibration.machine import POINT, QUIET
from t2tp.trainer.calibration.samples import (
    COLLECTIVE_SIZES,
    GROUP,
    SAMPLES,
    CollectiveSample,
    Sample,
)

_FED = {"one": np.zeros([1], np.float32)}
_FEATURES = {"one": t2tp.Feature("one:1")}
# Target seconds of a program (long enough that tensors are rarely in a cache, as in a real step),
# and the max number of its operations.
_WANTED, _MOST_OPERATIONS = 0.12, 96
# Calls are timed in blocks, until other programs use few of the cores during a block.
_REPETITIONS, _BLOCK_SECONDS, _BLOCKS = 4, 0.15, 3

Build = Callable[[Mesh, int], mtf.Tensor]
Points: TypeAlias = "Sequence[Point]"


def main() -> None:
    """Measures the operations and groups that the command line names, and prints the results."""
    wanted = json.loads(sys.argv[1])
    devices, connect = wanted["devices"], wanted["connect"]
    timed = Timed(t2tp.connect(devices, **connect))
    curves = _curves(timed) if wanted["computes"] else []
    place = {"devices": devices, "processes": connect.get("num_processes", 1)}
    collectives = [place | table for n in wanted["groups"] for table in _collectives(timed, n)]
    print(json.dumps({"curves": curves, "collectives": collectives, "disturbed": timed.disturbed}))


class Timed:
    """Times programs of one cluster.

    Attributes:
      devices: number of devices of all processes.
      disturbed: the fraction of the cores that other programs used, at each measured point.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.devices = len(cluster.devices)
        self.disturbed: list[float] = []
        self._cluster = cluster
        self._is_alone = len(cluster.local_pnums) == self.devices
        self._empty: dict[str, float] = {}

    def seconds(self, build: Build, count: int, layout: Layout) -> tuple[float, float]:
        """Returns the seconds of a program's operations, and their relative spread.

        The seconds are the time of the shortest call, without the time of an empty program. The
        spread is the relative distance from the shortest call to the lower quartile of the calls.
        It is larger if other programs disturbed the calls. For example, if they used half of the
        cores, a call may have taken twice as long, so the spread is at least 1.
        """
        if layout.mesh_text not in self._empty:
            nothing, _ = self._times(lambda mesh, _: mtf.get_variable(mesh, "x", ""), 0, layout)
            self._empty[layout.mesh_text] = min(nothing)
        taken, others = self._times(build, count, layout)
        low = min(taken)
        quartile, *_ = statistics.quantiles(taken, n=4)
        disturbance = others / max(1 - others, 0.1) if others > QUIET else 0.0
        self.disturbed.append(others)
        return max(low - self._empty[layout.mesh_text], 1e-7), max(quartile / low - 1, disturbance)

    def _times(self, build: Build, count: int, layout: Layout) -> tuple[list[float], float]:
        """Times calls in blocks; returns the results of `best_block`.

        Several processes must make the same number of calls, because calls may contain collectives.
        So with several processes the number does not depend on how busy the machine is.
        """
        step = _step(lambda mesh: mtf.reduce_sum(build(mesh, count)))
        program = Program(step, _FEATURES, layout=layout, cluster=self._cluster)
        fed = program.place(_FED)

        def call() -> float:
            begin = time.perf_counter()
            float(program(fed)["last"])
            return time.perf_counter() - begin

        return best_block(call, self._is_alone)


def best_block(call: Callable[[], float], is_alone: bool) -> tuple[list[float], float]:
    """Repeats a call that returns its seconds, in blocks.

    Returns:
      The seconds of each call in the block that has the shortest call, and the fraction of the
      cores that other programs used during this block.
    """
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


def _step(build: Callable[[Mesh], mtf.Tensor]) -> StepFn:
    """Returns a step that computes a tensor and reads no features."""

    def step(mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        return {"last": build(mesh)}

    return step


def _curves(timed: Timed) -> list[dict[str, Any]]:
    """Measures each kind of work, on all devices at once."""
    devices = timed.devices
    layout = Layout(f"all:{devices}" if devices > 1 else "", "")
    known: dict[str, Points] = {}
    for sample in SAMPLES:
        points = [_point(timed, sample, size, layout, known) for size in sample.sizes]
        known[sample.kind] = _growing(points)
    return [{"kind": kind, "devices": devices, "points": known[kind]} for kind in known]


def _point(
    timed: Timed, sample: Sample, size: int, layout: Layout, known: Mapping[str, Points]
) -> Point:
    """Measures operations of a size, in a program that is long enough to be timed."""

    def build(mesh: Mesh, count: int) -> mtf.Tensor:
        return sample.build(mesh, size, count)

    few, _ = timed.seconds(build, 2, layout)
    count = max(2, min(_MOST_OPERATIONS, round(2 * _WANTED / few)))
    seconds, spread = timed.seconds(build, count, layout)
    number, total, others = _work(sample, size, count, layout, known)
    print(POINT, flush=True)
    return total / number, max(seconds - others, seconds / 10) / number, spread


def _work(
    sample: Sample, size: int, count: int, layout: Layout, known: Mapping[str, Points]
) -> tuple[float, float, float]:
    """Returns the number and total size of the operations that have the sample's kind.

    Also returns the seconds of the sample's operations of other kinds.
    """
    step = _step(lambda mesh: sample.build(mesh, size, count))
    program = AbstractProgram(step, _FEATURES, layout=layout)
    number, total, others = 0.0, 0.0, 0.0
    for work, times in LoweredStep.from_program(program).work.items():
        each = work.flops if work.kind in COMPUTE_BOUND else work.num_bytes
        if work.kind == sample.kind:
            number, total = number + times, total + times * each
        elif work.kind in known:
            others += times * seconds_at(known[work.kind], each)[0]
    return number, total, others


def _collectives(timed: Timed, group: int) -> list[dict[str, Any]]:
    """Measures each kind of collective: the seconds by which it lengthens a chain of matmuls."""
    # Neighboring devices form a group, and no dimension is split.
    layout = Layout(f"other:{timed.devices // group};{GROUP}:{group}", "")
    points: dict[str, list[Point]] = {kind: [] for kind in COLLECTIVE_KINDS}
    for numbers in COLLECTIVE_SIZES:
        count = 16 if numbers < 1 << 12 else 4
        matmuls, _ = timed.seconds(partial(_chain, "", numbers), count, layout)
        for kind, of_kind in points.items():
            seconds, spread = timed.seconds(partial(_chain, kind, numbers), count, layout)
            print(POINT, flush=True)
            own = max(seconds - matmuls, seconds / 100)
            of_kind.append((4.0 * numbers, own / count, spread * seconds / own))
    return [{"kind": kind, "group": group, "points": _growing(p)} for kind, p in points.items()]


def _chain(kind: str, numbers: int, mesh: Mesh, count: int) -> mtf.Tensor:
    x = mtf.get_variable(mesh, "x", mtf.Shape([mtf.Dimension("numbers", numbers)]))
    return CollectiveSample(x, kind, count).outputs[0]


def _growing(points: Points) -> Points:
    """Removes noise: afterwards, no size takes longer than a larger size."""
    points = sorted(points)
    shortest = [min(seconds for _, seconds, _ in points[i:]) for i in range(len(points))]
    return [
        (size, least, spread) for (size, _, spread), least in zip(points, shortest, strict=True)
    ]


if __name__ == "__main__":
    main()
