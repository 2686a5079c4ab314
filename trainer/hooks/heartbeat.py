"""`heartbeat.json`: shows a supervisor that a training is alive."""

import datetime
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from t2tp.atomic_file import write_text
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.hooks.hook import Hook, Training

HEARTBEAT_FILE = "heartbeat.json"

# Min seconds between two writes.
BEAT_SECONDS = 5.0


class Heartbeat(Hook):
    """Records the time and the step number after a step, at most every 5 seconds.

    There is no writer thread: if the training loop hangs, the recorded time becomes old.
    """

    def __init__(self, output_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepares the file without writing it; `clock` returns monotonic seconds."""
        self._path = Path(output_dir) / HEARTBEAT_FILE
        self._clock = clock
        self._last = clock() - BEAT_SECONDS

    def beat(self, step: int, state: str, at_once: bool = False) -> None:
        """Writes the file atomically, unless it was written in the last `BEAT_SECONDS`.

        The state is `training`, `evaluating` or `ended`. If `at_once`, writes the file in any case.

        Raises:
          UsageError: the file cannot be written, for example because the disk is full.
        """
        now = self._clock()
        if not at_once and now - self._last < BEAT_SECONDS:
            return
        self._last = now
        report = {
            "time": time.time(),
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "step": step,
            "state": state,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        with as_usage_error(OSError):
            write_text(self._path, json.dumps(report) + "\n")

    def begin(self, training: Training) -> None:
        """Writes before the first step, because this step may take long."""
        self.beat(training.steps_done, "training", at_once=True)

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Writes the file if a heartbeat is due."""
        self.beat(training.steps_done, "training")
