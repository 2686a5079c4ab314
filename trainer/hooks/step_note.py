"""The step of each process, for the launcher, which outlives it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from t2tp.trainer.hooks.hook import Hook, Training

# Set by t2tp_launch: a directory in the host's memory.
LAUNCH_DIR_VARIABLE = "T2TP_LAUNCH_DIR"

_ENDING = ".step"


class StepNote(Hook):
    """Writes the number of steps done into a file of the launcher's directory."""

    def __init__(self, directory: Path, process_id: int) -> None:
        self._path = directory / f"{process_id}{_ENDING}"

    def begin(self, training: Training) -> None:
        """Writes the first step."""
        self._write(training.steps_done)

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Writes the step."""
        self._write(training.steps_done)

    def _write(self, step: int) -> None:
        self._path.write_text(f"{step:20d}")  # In one write of constant size.


def launch_directory() -> Path | None:
    """Returns the launcher's directory; None if t2tp_launch did not start this process."""
    path = os.environ.get(LAUNCH_DIR_VARIABLE)
    return Path(path) if path else None


def read_steps(directory: Path) -> dict[int, int]:
    """Returns the steps done by process index, of processes that have written them."""
    steps = {}
    for path in directory.glob(f"*{_ENDING}"):
        text = path.read_text().strip()
        if text.isdecimal() and path.stem.isdecimal():
            steps[int(path.stem)] = int(text)
    return steps
