"""Several processes agree on the step after which they stop.

A step runs in all processes or in none: whoever stopped alone would leave the others waiting in its
collectives. A signal may come to one process only, at any moment of a step. So each process has a
thread beside its training, which votes as soon as somebody asks for a stop: for the step that its
own process may have begun. The largest of them is the step after which all stop. The training that
comes to the end of its step meanwhile waits for the result, and then does the steps that are left.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from t2tp.mesh.peers import Peers

_LOOK_SECONDS = 0.1

_numbers = itertools.count()  # All processes train as often, and in the same order.


class _Outcome(NamedTuple):
    """What the processes agreed on: the last step, and the signal; 0 if nobody asked for a stop."""

    step: int
    signal: int


class StopVote:
    """The vote of one training; each process has one, and votes once."""

    def __init__(
        self, peers: Peers, steps_done: int, signal_here: Callable[[], int], seconds: float
    ) -> None:
        """Begins to listen.

        Args:
          peers: the other processes.
          steps_done: steps that were done before the training.
          signal_here: the number of the signal that came to this process, 0 if none.
          seconds: how long to wait for the votes of the others.
        """
        self._peers = peers
        self._signal_here = signal_here
        self._seconds = seconds
        self._notice = f"stop training {next(_numbers)}"
        self._lock = threading.Lock()
        self._begun = steps_done + 1
        self._has_voted = False
        self._outcome: Future[_Outcome] = Future()
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="stop-vote", daemon=True).start()

    def stops_after(self, steps_done: int) -> bool:
        """Whether all processes stop after this step, which is done here.

        Raises:
          MissingProcessError: other processes are gone.
        """
        with self._lock:
            if not self._has_voted:
                self._begun = steps_done + 1
                return False
        outcome = self._outcome.result()
        return outcome.signal != 0 and steps_done >= outcome.step

    def result(self) -> int:
        """The signal for which all processes stop, 0 if for none; after the last step.

        Raises:
          MissingProcessError: other processes are gone.
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
                self._peers.announce(self._notice)
            if asked_here or self._peers.notice == self._notice:
                self._vote()
                return

    def _vote(self) -> None:
        with self._lock:
            if self._has_voted:
                return
            self._has_voted = True
            mine = (self._begun, self._signal_here())
        try:
            said = self._peers.exchange("stop", json.dumps(mine), self._seconds)
            steps, signals = zip(*map(json.loads, said), strict=True)
            self._outcome.set_result(_Outcome(max(steps), max(signals)))
        except BaseException as error:
            self._outcome.set_exception(error)
