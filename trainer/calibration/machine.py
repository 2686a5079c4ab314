"""Measures this machine in worker processes, and makes a cluster of what they say."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2tp.processes.process_spec import THREADS_VARIABLE
from t2tp.processes.rendezvous import free_port

# Bytes that TensorFlow takes before a program begins.
RESERVED = 500e6
STACK = "tensorflow"
# What a step has besides its operations is not in the spread of any of them.
_LEAST_SPREAD = 0.05


class CalibrationError(RuntimeError):
    """A measurement has failed."""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def measure(
    devices: Sequence[int], processes: Sequence[int], say: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """Measures operations and collectives.

    Operations are measured on one device, which has all cores, and on one device per core.

    Args:
      devices: numbers of virtual devices of one process.
      processes: numbers of processes of one device each.
      say: told what is measured next.

    Returns:
      `curves` and `collectives`, as tables of a cluster file.

    Raises:
      CalibrationError: a process failed.
    """
    found: dict[str, list[dict[str, Any]]] = {"curves": [], "collectives": []}
    for count in devices:
        computes = count in (1, cores())
        groups = [n for n in range(2, count + 1) if count % n == 0]
        if computes or groups:
            say(f"{count} devices in one process")
            _add(found, _run([{"devices": count, "groups": groups, "computes": computes}]))
    for count in processes:
        say(f"{count} processes")
        groups = [n for n in range(2, count + 1) if count % n == 0]
        together = {
            "devices": count,
            "processes": count,
            "groups": groups,
            "coordinator": f"localhost:{free_port()}",
        }
        _add(found, _run([{**together, "rank": rank} for rank in range(count)]))
    return found


def _add(found: dict[str, list], more: Mapping[str, list]) -> None:
    for name, curves in more.items():
        found[name] += curves


def _run(workers: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs processes that measure together; returns what the first says."""
    threads = {THREADS_VARIABLE: str(max(1, cores() // len(workers)))} if len(workers) > 1 else {}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "t2tp.trainer.calibration.worker", json.dumps(worker)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | threads | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
        for worker in workers
    ]
    said = [process.communicate() for process in started]
    for process, (_, error) in zip(started, said, strict=True):
        if process.returncode:
            last = error.strip().splitlines()[-1:] or ["it said nothing"]
            raise CalibrationError(f"a process that measured this machine failed: {last[0]}")
    return json.loads(said[0][0].splitlines()[-1])


def cluster_table(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns a cluster of this machine as the table of a cluster file."""
    products = [c for c in found["curves"] if c["kind"] == "product"]
    moves = [c for c in found["curves"] if c["kind"] == "elementwise"]
    reduces = [c for c in found["collectives"] if c["kind"] == "allreduce"]
    spreads = [p[2] for c in (*found["curves"], *found["collectives"]) for p in c["points"]]
    spread = max(_LEAST_SPREAD, statistics.median(spreads))
    return {
        "name": "this machine",
        "host_devices": 4 * cores(),
        "source": "measured by t2tp_calibrate",
        "device": {
            "name": _processor(),
            "memory": _memory(),
            "bandwidth": round(max(_rates(moves))),
            "reserved": RESERVED,
            "cores": cores(),
            "peak": {"float32": round(max(_rates(products)))},
        },
        "links": [
            _link("inside a process", True, [c for c in reduces if c["processes"] == 1], moves),
            _link("between processes", False, [c for c in reduces if c["processes"] > 1], moves),
        ],
        "stacks": {
            STACK: {
                "fuses": False,
                "attention": "engine",
                "spread": spread,
                "spread_links": spread,
                **found,
            }
        },
    }


def _link(name: str, of_process: bool, curves: list, moves: list) -> dict[str, Any]:
    """Returns a level; one that was not measured is as fast as memory."""
    curves = curves or moves
    return {
        "name": name,
        "bandwidth": round(max(_rates(curves))),
        "latency": min(p[1] for c in curves for p in c["points"]),
        "of_process": of_process,
    }


def _rates(curves: Sequence[Mapping[str, Any]]) -> list[float]:
    return [curve["devices"] * size / s for curve in curves for size, s, _ in curve["points"]]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU"
    )


def _memory() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
