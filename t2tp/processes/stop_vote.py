"""The stop vote: several processes agree on the step after which they stop.

A signal may reach only one process, at any moment of a step. If this process stopped alone, the
others would wait in the collectives of the next step. So a background thread in each process votes
as soon as any process asks for a stop. The vote is the latest step that the process may have begun,
and all processes stop after the largest of these steps. A training loop that finishes its step
during the vote waits for the outcome, and then trains up to the step on which the processes agreed.
"""

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from t2tp.processes.coordination import CoordinationClient

_LOOK_SECONDS = 0.1

# Numbers of the votes. They are equal in all processes, because all processes start the same
# trainings in the same order.
_numbers = itertools.count()


class _VoteOutcome(NamedTuple):
    """The outcome of a vote: the last step, and the signal (0: no process asked for a stop)."""

    step: int
    signal: int


class StopVote:
    """The vote of one training, in which each process votes once.

    Its methods raise MissingProcessError if other processes are lost.
    """

    def __init__(
        self,
        coordination: CoordinationClient,
        steps_done: int,
        signal_here: Callable[[], int],
        seconds: float,
    ) -> None:
        """Starts to listen for requests to stop.

        `steps_done` steps are done before the training. `signal_here` returns the number of the
        signal that this process received; 0: none. The vote waits at most `seconds` for the votes
        of other processes.
        """
        self._coordination = coordination
        self._signal_here = signal_here
        self._seconds = seconds
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
        while not self._closed.wait(_LOOK_SECONDS):
            asked_here = bool(self._signal_here())
            if asked_here:
                self._coordination.announce(self._notice)
            if asked_here or self._coordination.notice == self._notice:
                self._vote()
                return

    def _vote(self) -> None:
        with self._lock:
            if self._has_voted:
                return
            self._has_voted = True
            vote = (self._begun, self._signal_here())
        try:
            votes = self._coordination.process_allgather("stop", json.dumps(vote), self._seconds)
            steps, signals = zip(*map(json.loads, votes), strict=True)
            self._outcome.set_result(_VoteOutcome(max(steps), max(signals)))
        except BaseException as error:  # The training loop waits for the outcome, and raises this.
            self._outcome.set_exception(error)
