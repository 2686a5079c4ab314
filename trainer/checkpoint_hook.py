"""Saves while training goes on: when, and that errors of saving are not missed."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from t2tp.mesh.cluster import Cluster
from t2tp.trainer.hooks import Hook, Training, wait_for
from t2tp.trainer.run_saver import RunSaver


class Cadence(Protocol):
    """Says when a checkpoint is due; the same in all processes."""

    def is_due(self, step: int) -> bool:
        """Whether to save after this step. It is asked after each."""

    def saved(self, step: int) -> None:
        """Is told when one was saved."""

    def next(self, step: int) -> str:
        """When the next one comes, for people."""


class EverySteps:
    """A checkpoint each time a number of steps has been done."""

    def __init__(self, steps: int, last_step: int | None = None) -> None:
        """Says how many steps, and after which the training ends: it is saved too."""
        self._steps = steps
        self._last_step = last_step

    def is_due(self, step: int) -> bool:
        """Whether to save after this step."""
        return step % self._steps == 0

    def saved(self, step: int) -> None:
        """Changes nothing."""

    def next(self, step: int) -> str:
        """The step of the next one."""
        due = step // self._steps * self._steps + self._steps
        return f"saves at {due if self._last_step is None else min(due, self._last_step)}"


class EverySeconds:
    """A checkpoint each time so many seconds have passed, by the clock of process 0.

    All processes have to save after the same step, and to ask process 0 after each would make them
    wait for it. So it says with each answer when to ask again: after half the steps that, at the
    speed so far, there is time for. A single process asks itself after each step.
    """

    def __init__(
        self,
        seconds: float,
        cluster: Cluster,
        first_step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the time.

        Args:
          seconds: from one checkpoint to the next.
          cluster: the processes.
          first_step: steps that are done now.
          clock: seconds since some moment.
        """
        self._seconds = seconds
        self._cluster = cluster
        self._clock = clock
        self._saved_at = clock()
        self._saved_step = first_step
        self._ask_at = first_step + 1

    def is_due(self, step: int) -> bool:
        """Whether to save after this step."""
        if step < self._ask_at:
            return False
        answer = json.dumps(self._look(step)) if self._cluster.leads else ""
        is_due, self._ask_at = json.loads(self._cluster.agree("time to save", answer))
        return is_due

    def saved(self, step: int) -> None:
        """Starts the time anew."""
        self._saved_at, self._saved_step, self._ask_at = self._clock(), step, step + 1

    def next(self, step: int) -> str:
        """The time until the next one."""
        left = max(0.0, self._saved_at + self._seconds - self._clock())
        return f"saves in {datetime.timedelta(seconds=round(left))}"

    def _look(self, step: int) -> tuple[bool, int]:
        """Whether it is time, and the step at which to ask again; for process 0."""
        elapsed = self._clock() - self._saved_at
        if elapsed >= self._seconds or self._cluster.num_processes == 1:
            return elapsed >= self._seconds, step + 1
        steps_left = (self._seconds - elapsed) * (step - self._saved_step) / max(elapsed, 1e-9)
        return False, step + max(1, int(min(steps_left, 1e6) / 2))


class CheckpointHook(Hook):
    """Saves when it is due, when an evaluation was the best so far, and where training ends."""

    def __init__(self, cadence: Cadence, saver: RunSaver) -> None:
        """Says when, and how.

        Args:
          cadence: when a checkpoint is due.
          saver: writes them.
        """
        self._cadence = cadence
        self._saver = saver
        self._saved_at: int | None = None

    def next(self, step: int) -> str:
        """When the next checkpoint comes, for people."""
        return self._cadence.next(step)

    def before_step(self, training: Training) -> None:
        """Stops the training if what was saved last could not be written."""
        self._saver.check()

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Saves if it is time."""
        step = training.steps_done
        if self._cadence.is_due(step) or self._saver.is_best(step):
            wait_for(training, outputs)
            self._save(training)

    def end(self, training: Training) -> None:
        """Saves the last step, if that was not done, and waits until it is on the disk."""
        if self._saved_at != training.steps_done:
            training.confirm()
            self._save(training)
        with training.clock.stopped("checkpoint"):
            self._saver.wait()

    def _save(self, training: Training) -> None:
        with training.clock.stopped("checkpoint"):
            self._saver.save(training.steps_done)
        self._saved_at = training.steps_done
        self._cadence.saved(training.steps_done)
