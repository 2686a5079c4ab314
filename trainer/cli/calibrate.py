"""`t2tp_calibrate`: measures this machine and writes a cluster file for `t2tp_plan`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from t2tp.atomic_file import write_text
from t2tp.planner.cluster_file import ClusterFile
from t2tp.trainer.calibration import machine
from t2tp.trainer.calibration.toml_text import toml_text
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import FailedError, UsageError, as_usage_error


def run(invocation: Invocation) -> None:
    """Measures, and writes the file.

    Raises:
      UsageError: a flag is invalid, or the file to add to is.
      FailedError: a measurement failed, or the file cannot be written.
    """
    flags = invocation.flags
    path = Path(flags.output)
    if path.suffix != ".toml":
        raise UsageError(f"--output={path}: the name of a cluster file ends in .toml")
    devices, processes = (_counts(flags, name) for name in ("devices", "processes"))
    found = _known(path) if flags.append else {"curves": [], "collectives": []}
    # Those with which operations are measured come first: a file needs their curves.
    devices.sort(key=lambda count: (count not in (1, machine.cores()), count))
    if not found["curves"] and not set(devices) & {1, machine.cores()}:
        raise UsageError(f"--devices: with 1 or {machine.cores()}, operations are measured")
    pieces: list[tuple[list[int], list[int]]] = [([count], []) for count in devices]
    pieces += [([], [count]) for count in processes]
    try:
        for of_devices, of_processes in pieces:
            measured = machine.measure(of_devices, of_processes, _say)
            for name, curves in measured.items():
                found[name] = [each for each in found[name] if not _is_among(each, curves)] + curves
            # After each piece, so that what is measured stays if a later one fails.
            write_text(path, toml_text(machine.cluster_table(found)))
    except (machine.CalibrationError, OSError) as error:
        raise FailedError(str(error)) from error
    print(f"{path}: measured; --cluster={path} of t2tp_plan takes it.")


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr, flush=True)


def _counts(flags: absl_flags.FlagValues, name: str) -> list[int]:
    given = [each.strip() for each in flags[name].value or () if each.strip()]
    if not all(each.isdecimal() and int(each) > 0 for each in given):
        raise UsageError(f"--{name}={','.join(given)}: numbers such as 1,2,4")
    return sorted({int(each) for each in given})


def _known(path: Path) -> dict[str, list[dict[str, Any]]]:
    with as_usage_error(ValueError):
        stack = ClusterFile.load(os.fspath(path)).software
    return {
        "curves": [dataclasses.asdict(curve) for curve in stack.curves],
        "collectives": [dataclasses.asdict(curve) for curve in stack.collectives],
    }


def _is_among(curve: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    """Whether others were measured of the same kind, at the same place."""

    def what(each: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in each.items() if key != "points"}

    return any(what(curve) == what(other) for other in others)
