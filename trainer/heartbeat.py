"""`heartbeat.json`: by which a supervisor sees that a training still goes on."""

from __future__ import annotations

import datetime
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.hooks import Hook, Training
from t2tp.whole_file import write_text

HEARTBEAT_FILE = "heartbeat.json"

# At most one beat in so many seconds.
BEAT_SECONDS = 5.0


class Heartbeat:
    """Writes when the loop of a training was last at work, and where.

    It has no thread of its own: a loop that hangs does not beat.
    """

    def __init__(self, output_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Writes nothing yet.

        Args:
          output_dir: the folder of the run.
          clock: seconds since some moment.
        """
        self._path = Path(output_dir) / HEARTBEAT_FILE
        self._clock = clock
        self._last = clock() - BEAT_SECONDS

    def beat(self, step: int, state: str, at_once: bool = False) -> None:
        """Writes the file, whole or not at all; nothing if it was written just now.

        Args:
          step: how many steps were done.
          state: `training`, `evaluating` or `ended`.
          at_once: writes it also if it was written just now.

        Raises:
          UsageError: it cannot be written; the disk is full, say.
        """
        now = self._clock()
        if not at_once and now - self._last < BEAT_SECONDS:
            return
        self._last = now
        said = {
            "time": time.time(),
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "step": step,
            "state": state,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        with as_usage_error(OSError):
            write_text(self._path, json.dumps(said) + "\n")


class HeartbeatHook(Hook):
    """Beats after each step."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        """Says with what."""
        self._heartbeat = heartbeat

    def begin(self, training: Training) -> None:
        """Beats before the first step, which may take long."""
        self._heartbeat.beat(training.steps_done, "training", at_once=True)

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Beats if it is time."""
        self._heartbeat.beat(training.steps_done, "training")

    def end(self, training: Training) -> None:
        """Says that nothing more will come."""
        self._heartbeat.beat(training.steps_done, "ended", at_once=True)
