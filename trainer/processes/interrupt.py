"""Handling of SIGINT, SIGTERM and SIGHUP: training finishes the step and saves it before it exits.

Outside training these signals end the program at once, since there is nothing to save.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import NamedTuple

from absl import logging

from t2tp.processes.cluster import Cluster
from t2tp.trainer.errors import SIGNALLED, Interrupted
from t2tp.trainer.processes.children import handled

# After one request to stop, SIGTERM may arrive several times. For example, systemd signals the
# launcher and its processes, and the launcher forwards the signal to the processes. If a launcher
# is killed, the kernel may send its processes one SIGTERM for each thread of the launcher. Within
# this time after the first signal, further SIGTERMs are ignored.
_SAME_REQUEST_SECONDS = 1.0


class TrainingInterrupted(Interrupted):
    """A signal stopped the training, and a checkpoint was saved."""


class InterruptHandler:
    """Stops the training at the first signal, and exits at the second.

    A SIGTERM within `_SAME_REQUEST_SECONDS` after the first signal does not count as the second.

    A signal to one of several processes stops all of them, after the same step.

    Python runs signal handlers only in the main thread. If the training runs in another thread, the
    signal handlers are not changed.
    """

    def __init__(
        self, cluster: Cluster, steps_done: int, grace_seconds: float | None = None
    ) -> None:
        """Sets the parameters; entering the context installs the signal handlers.

        If the step and its save are not finished within `grace_seconds` after the signal, the
        process exits without them; the previous checkpoint stays valid. None: no limit.
        """
        self._cluster = cluster
        self._grace_seconds = grace_seconds
        self._steps_done = steps_done
        self._received = 0
        self._received_at = 0.0
        self._vote: StopVote | None = None
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> InterruptHandler:
        if self._in_main_thread:
            self._cleanup.enter_context(handled(self._note))
        if self._cluster.coordination is not None:
            self._vote = StopVote(self._cluster, self._steps_done, lambda: self._received)
            self._cleanup.callback(self._vote.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def stops_after(self, steps_done: int) -> bool:
        """Whether to stop after step `steps_done`, which has just finished.

        Raises:
          MissingProcessError: other processes were lost.
        """
        return bool(self._received) if self._vote is None else self._vote.stops_after(steps_done)

    def result(self) -> int:
        """Returns the signal that stopped the training; 0: none. Called after the last step.

        Raises:
          MissingProcessError: other processes were lost.
        """
        return self._received if self._vote is None else self._vote.result()

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received:
            if number == signal.SIGTERM and now - self._received_at < _SAME_REQUEST_SECONDS:
                return
            raise Interrupted("interrupted again: exiting with the last checkpoint", number)
        self._received, self._received_at = number, now
        if self._grace_seconds is not None:
            timer = threading.Timer(self._grace_seconds, self._leave)
            timer.daemon = True
            timer.start()
            self._cleanup.callback(timer.cancel)
        logging.info("interrupted: finishing and saving the step (interrupt again to exit at once)")

    def _leave(self) -> None:
        """Exits when the grace time is over, whatever the main thread is doing."""
        logging.error(
            f"the step was not finished and saved within the grace time of {self._grace_seconds:g}"
            " s: exiting; the last checkpoint is of an earlier step"
        )
        sys.stderr.flush()
        os._exit(SIGNALLED + self._received)


_LOOK_SECONDS = 0.1

# Numbers of the votes. They are equal in all processes, because all processes start the same
# trainings in the same order.
_numbers = itertools.count()


# The stop vote: a signal may reach only one process, at any moment of a step. If this process
# stopped alone, the others would wait in the collectives of the next step. So a background thread
# in each process votes as soon as any process asks for a stop. The vote is the latest step that the
# process may have begun, and all processes stop after the largest of these steps. A training loop
# that finishes its step during the vote waits for the outcome, and then trains up to the agreed
# step.
class _VoteOutcome(NamedTuple):
    """The outcome of a vote: the last step, and the signal (0: no process asked for a stop)."""

    step: int
    signal: int


class StopVote:
    """The vote of one training, in which each process votes once.

    Its methods raise MissingProcessError if other processes are lost.
    """

    def __init__(self, cluster: Cluster, steps_done: int, signal_here: Callable[[], int]) -> None:
        """Starts to listen for requests to stop.

        `steps_done` steps are done before the training. `signal_here` returns the number of the
        signal that this process received; 0: none.
        """
        self._cluster = cluster
        self._signal_here = signal_here
        self._notice = f"stop training {next(_numbers)}"
        self._lock = threading.Lock()
        self._begun = steps_done + 1
        self._has_voted = False
        self._outcome: Future[_VoteOutcome] = Future()
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="stop-vote", daemon=True).start()

    def stops_after(self, steps_done: int) -> bool:
        """Returns whether all processes stop after this step; call it when the step is done.

        Raises:
          MissingProcessError: other processes were lost.
        """
        # The lock ensures that if this process votes later, it votes for the step that begins now
        # or for a later one.
        with self._lock:
            if not self._has_voted:
                self._begun = steps_done + 1
                return False
        outcome = self._outcome.result()
        return outcome.signal != 0 and steps_done >= outcome.step

    def result(self) -> int:
        """Returns the signal that stops all processes, 0 if none; call it after the last step.

        Raises:
          MissingProcessError: other processes were lost.
        """
        self._vote()
        return self._outcome.result().signal

    def close(self) -> None:
        """Stops listening."""
        self._closed.set()

    def _listen(self) -> None:
        coordination = self._cluster.coordination
        assert coordination is not None
        while not self._closed.wait(_LOOK_SECONDS):
            asked_here = bool(self._signal_here())
            if asked_here:
                coordination.announce(self._notice)
            if asked_here or coordination.notice == self._notice:
                self._vote()
                return

    def _vote(self) -> None:
        with self._lock:
            if self._has_voted:
                return
            self._has_voted = True
            vote = (self._begun, self._signal_here())
        try:
            steps, signals = zip(*self._cluster.process_allgather("stop", vote), strict=True)
            self._outcome.set_result(_VoteOutcome(max(steps), max(signals)))
        except BaseException as error:  # The training loop waits for the outcome, and raises this.
            self._outcome.set_exception(error)
