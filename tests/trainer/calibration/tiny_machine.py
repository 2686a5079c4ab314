"""Invented measurements of a machine with two cores."""

from pathlib import Path
from typing import Any

from t2tp.trainer.calibration import machine
from t2tp.trainer.calibration.toml_text import toml_text

# (size, seconds, spread)
POINTS = [[1e3, 1e-5, 0.1], [1e5, 1e-4, 0.2], [1e7, 1e-2, 0.3]]


def _curve(kind: str, devices: int, factor: float = 1.0) -> dict[str, Any]:
    points = [[size, factor * seconds, spread] for size, seconds, spread in POINTS]
    return {"kind": kind, "devices": devices, "points": points}


def _groups(kind: str, group: int, devices: int, processes: int, factor: float = 1.0) -> dict:
    return {**_curve(kind, devices, factor), "group": group, "processes": processes}


FOUND = {
    "curves": [
        _curve(kind, devices, devices)
        for kind in ("product", "elementwise", "attention")
        for devices in (1, 2)
    ],
    "collectives": [
        _groups("allreduce", 2, 2, 1),
        _groups("allreduce", 4, 4, 1, 3.0),
        _groups("allreduce", 2, 2, 2, 7.0),
    ],
}


def write(path: Path) -> None:
    """Writes the machine's cluster file, as `t2tp_calibrate` does."""
    path.write_text(toml_text(machine.cluster_table(FOUND)))
