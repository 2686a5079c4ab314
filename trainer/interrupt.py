"""Ctrl-C, and a supervisor's SIGTERM: the step is finished and saved before the program leaves."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from absl import logging

from t2tp.mesh.cluster import Cluster
from t2tp.trainer.stop_vote import StopVote

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(KeyboardInterrupt):
    """Training was stopped by a signal, after a checkpoint was saved.

    Attributes:
      signal_number: of the signal.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        """Says what was saved, and which signal it was."""
        super().__init__(message)
        self.signal_number = signal_number


class InterruptHandler:
    """While this is active, a first SIGINT or SIGTERM is noted; a second one leaves at once.

    A signal to one of several processes counts for all of them: they stop after the same step.

    Only a program's main thread receives signals; in another thread nothing changes.
    """

    def __init__(self, cluster: Cluster, steps_done: int) -> None:
        """Nothing is changed before entering the context.

        Args:
          cluster: the processes that train.
          steps_done: steps that were done before the training.
        """
        self._cluster = cluster
        self._steps_done = steps_done
        self._came = 0
        self._vote: StopVote | None = None
        self._in_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> InterruptHandler:
        if self._in_main_thread:
            self._previous = {each: signal.signal(each, self._note) for each in _SIGNALS}
        if self._cluster.peers is not None:
            self._vote = StopVote(
                self._cluster.peers,
                self._steps_done,
                lambda: self._came,
                self._cluster.time_limit,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._vote is not None:
            self._vote.close()
        if self._in_main_thread:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def stops_after(self, steps_done: int) -> bool:
        """Whether training stops after this step, which is done.

        Raises:
          MissingProcessError: other processes are gone.
        """
        return bool(self._came) if self._vote is None else self._vote.stops_after(steps_done)

    def result(self) -> int:
        """The number of the signal that stopped the training, 0 if none did; after the last step.

        Raises:
          MissingProcessError: other processes are gone.
        """
        return self._came if self._vote is None else self._vote.result()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = number
        logging.info("interrupted: finishing the step and saving it (again: leave at once)")
