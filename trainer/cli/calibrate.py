"""`t2tp_calibrate`: measures this machine and writes a cluster file for `t2tp_plan`."""

import dataclasses
import os
import shlex
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl import logging
from tqdm import tqdm

from t2tp.atomic_file import write_text
from t2tp.planner.cluster_file import ClusterFile
from t2tp.trainer.calibration import machine
from t2tp.trainer.calibration.toml_text import toml_text
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import FailedError, UsageError, as_usage_error


def run(invocation: Invocation) -> None:
    """Measures the machine and writes the cluster file."""
    flags = invocation.flags
    path = Path(flags.output)
    if path.suffix != ".toml":
        raise UsageError(f"--output={path}: the name of a cluster file ends in .toml")
    devices, processes = (_counts(flags, name) for name in ("devices", "processes"))
    found = _known(path) if flags.append else {"curves": [], "collectives": []}
    # Only the runs on 1 core and on all cores measure operations too. These runs come first,
    # because a cluster file is invalid without curves of operations.
    devices.sort(key=lambda count: (count not in (1, machine.cores()), count))
    if not found["curves"] and not set(devices) & {1, machine.cores()}:
        raise UsageError(f"--devices must include 1 or {machine.cores()}, to measure operations")
    pieces = [machine.Piece(count) for count in devices]
    pieces += [machine.Piece(count, count) for count in processes]
    disturbed: list[float] = []
    points = sum(piece.points for piece in pieces)
    try:
        with tqdm(desc="measuring", total=points, unit=" points", mininterval=1.0) as bar:
            for piece in pieces:
                measured = machine.measure(piece, bar.update)
                disturbed += measured["disturbed"]
                for name, old in found.items():
                    new = measured[name]
                    found[name] = [each for each in old if not _is_among(each, new)] + new
                # Written after each piece, so that a later failure does not lose the piece.
                write_text(path, toml_text(machine.cluster_table(found)))
    except (machine.CalibrationError, OSError) as error:
        raise FailedError(str(error)) from error
    busy = [share for share in disturbed if share > machine.QUIET]
    if busy:
        logging.warning(
            "other programs used up to %.0f%% of the cores during %d of %d measurements: their"
            " spread is wider; measure again when the machine is quiet",
            100 * max(busy),
            len(busy),
            len(disturbed),
        )
    print(f"{path}: written; t2tp_plan --cluster={shlex.quote(str(path))} reads it")


def _counts(flags: absl_flags.FlagValues, name: str) -> list[int]:
    given = [each.strip() for each in flags[name].value or () if each.strip()]
    if not all(each.isdecimal() and int(each) > 0 for each in given):
        raise UsageError(f"--{name}={','.join(given)}: expected numbers such as 1,2,4")
    return sorted({int(each) for each in given})


def _known(path: Path) -> dict[str, list[dict[str, Any]]]:
    with as_usage_error(ValueError):
        stack = ClusterFile.load(os.fspath(path)).software
    return {
        "curves": [dataclasses.asdict(curve) for curve in stack.curves],
        "collectives": [dataclasses.asdict(curve) for curve in stack.collectives],
    }


def _is_among(curve: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    """Whether one of the other curves differs from this curve at most in its points."""

    def without_points(each: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in each.items() if key != "points"}

    return any(without_points(curve) == without_points(other) for other in others)
