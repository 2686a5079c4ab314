"""Measures this machine in worker processes, and makes a cluster file from the measurements."""

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2tp.planner.curves import COLLECTIVE_KINDS
from t2tp.processes.process_spec import THREADS_VARIABLE
from t2tp.processes.rendezvous import free_port
from t2tp.trainer.calibration.samples import COLLECTIVE_SIZES, SAMPLES
from t2tp.trainer.processes.children import start

# Bytes of memory that TensorFlow uses before a program begins.
RESERVED = 500e6
STACK = "t2tp"
# A worker prints a line with this prefix after each measured point.
POINT = "point "
# Fraction of the cores that other programs may use without disturbing a measurement.
QUIET = 0.05
# Min relative uncertainty of a predicted time. Measurements may spread less, but they do not cover
# all of a step.
_LEAST_SPREAD = 0.05


class CalibrationError(RuntimeError):
    """A measurement has failed."""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Piece:
    """A part of the measurements, made by workers that run together.

    Attributes:
      devices: number of virtual devices of all processes.
      processes: number of processes.
    """

    devices: int
    processes: int = 1

    @property
    def computes(self) -> bool:
        """Whether operations are measured, and not only collectives.

        They are measured in one process, with one device that uses all cores and with one device
        per core.
        """
        return self.processes == 1 and self.devices in (1, cores())

    @property
    def groups(self) -> list[int]:
        """The sizes of the groups whose collectives are measured."""
        return [n for n in range(2, self.devices + 1) if self.devices % n == 0]

    @property
    def points(self) -> int:
        """Number of points to measure."""
        of_work = sum(len(sample.sizes) for sample in SAMPLES) if self.computes else 0
        return of_work + len(self.groups) * len(COLLECTIVE_KINDS) * len(COLLECTIVE_SIZES)


def measure(piece: Piece, progress: Callable[[], object]) -> dict[str, Any]:
    """Measures operations and collectives in worker processes.

    `progress` is called after each point.

    Returns:
      `curves` and `collectives`, as tables of a cluster file, and `disturbed`: for each point, the
      fraction of the cores that other programs used.

    Raises:
      CalibrationError: a process failed.
    """
    wanted = {"devices": piece.devices, "groups": piece.groups, "computes": piece.computes}
    connects: list[dict[str, Any]] = [{}]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    if piece.processes > 1:
        common = {"num_processes": piece.processes, "coordinator": f"localhost:{free_port()}"}
        connects = [{**common, "process_id": rank} for rank in range(piece.processes)]
        variables[THREADS_VARIABLE] = str(max(1, cores() // piece.processes))
    command = [sys.executable, "-m", f"{__package__}.worker"]
    workers: list[subprocess.Popen] = []
    lines: list[str] = []
    try:
        for connect in connects:
            start(
                [*command, json.dumps({**wanted, "connect": connect})],
                workers,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | variables,
            )
        for line in workers[0].stdout or ():
            if line.startswith(POINT):
                progress()
            else:
                lines.append(line.strip())
        for worker in workers:
            others, _ = worker.communicate()
            if worker.returncode:
                last = [*lines, *others.splitlines()][-1:] or ["it printed nothing"]
                raise CalibrationError(f"a process that measured this machine failed: {last[0]}")
    finally:
        for worker in workers:
            worker.kill()
    return json.loads(lines[-1])


def cluster_table(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns the table of this machine's cluster file."""
    products, moves = (
        [c for c in found["curves"] if c["kind"] == kind] for kind in ("product", "elementwise")
    )
    reduces = [c for c in found["collectives"] if c["kind"] == "allreduce"]
    links = []
    for name, of_process in (("inside a process", True), ("between processes", False)):
        # A link without measurements is assumed to be as fast as memory.
        curves = [c for c in reduces if (c["processes"] == 1) == of_process] or moves
        latency = min(p[1] for c in curves for p in c["points"])
        link = {"name": name, "bandwidth": round(max(_rates(curves)))}
        links.append({**link, "latency": latency, "of_process": of_process})
    spreads = [p[2] for c in found["curves"] for p in c["points"]]
    spread = max(_LEAST_SPREAD, statistics.median(spreads))
    stack = {
        "own": True,
        "fuses": False,
        "attention": "engine",
        "spread": spread,
        "spread_links": spread,
    }
    return {
        "name": "this machine",
        "host_devices": 4 * cores(),
        "source": "measured by t2tp_calibrate",
        "device": {
            "name": _processor(),
            "memory": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            "bandwidth": round(max(_rates(moves))),
            "reserved": RESERVED,
            "cores": cores(),
            "peak": {"float32": round(max(_rates(products)))},
        },
        "links": links,
        "stacks": {STACK: {**stack, **found}},
    }


def _rates(curves: Sequence[Mapping[str, Any]]) -> list[float]:
    return [curve["devices"] * size / s for curve in curves for size, s, _ in curve["points"]]


def _processor() -> str:
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return match[1] if match else "CPU"
