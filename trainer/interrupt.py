"""Ctrl-C: the step is finished and saved before the program leaves."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from absl import logging


class TrainingInterrupted(KeyboardInterrupt):
    """Training was stopped by a signal, after a checkpoint was saved."""


class InterruptHandler:
    """While this is active, a first SIGINT is noted, and a second one stops the program at once.

    Only a program's main thread receives signals; in another thread nothing changes.

    Attributes:
      requested: whether SIGINT has come.
    """

    def __init__(self) -> None:
        """Nothing is changed before entering the context."""
        self.requested = False
        self._in_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> InterruptHandler:
        if self._in_main_thread:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._in_main_thread:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        logging.info("interrupted: finishing the step and saving it (again: leave at once)")
