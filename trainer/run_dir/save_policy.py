"""Decides when a training saves checkpoints: every N steps, or every N seconds."""

import datetime
import time
from collections.abc import Callable

from t2tp.processes.cluster import Cluster


class EverySteps:
    """Saves every N steps.

    A policy decides when a checkpoint is due, at the same steps in all processes.
    """

    def __init__(self, steps: int, last_step: int | None = None) -> None:
        """Counts from step 0.

        `last_step` is the last step of the training; only `next` uses it.
        """
        self._steps = steps
        self._last_step = last_step

    def ends_loop(self, step: int) -> bool:
        """Whether to save after this step, which is certain in advance."""
        return step % self._steps == 0

    is_due = ends_loop

    def saved(self, step: int) -> None:
        """Does nothing: only the step number matters."""

    def next(self, step: int) -> str:
        """Describes the step of the next checkpoint."""
        due = step // self._steps * self._steps + self._steps
        return f"saves at {due if self._last_step is None else min(due, self._last_step)}"


class EverySeconds:
    """Saves every N seconds, by the clock of process 0.

    All processes must save after the same step, but asking process 0 after every step would make
    them wait for it. So each answer of process 0 includes the step at which to ask again: the step
    that will be reached, at the current speed, after half of the time until the next checkpoint. A
    single process checks its clock after every step.
    """

    def __init__(
        self,
        seconds: float,
        cluster: Cluster,
        first_step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the clock."""
        self._seconds = seconds
        self._cluster = cluster
        self._clock = clock
        self._saved_at = clock()
        self._saved_step = first_step
        self._ask_at = first_step + 1

    def ends_loop(self, step: int) -> bool:
        """Returns False: the steps to save at are not known in advance."""
        return False

    def is_due(self, step: int) -> bool:
        """Whether to save after this step; called after every launch of steps."""
        if step < self._ask_at:
            return False
        answer = self._check_clock(step) if self._cluster.is_main_process else None
        is_due, self._ask_at = self._cluster.process_broadcast("time to save", answer)
        return is_due

    def saved(self, step: int) -> None:
        """Restarts the clock."""
        self._saved_at, self._saved_step, self._ask_at = self._clock(), step, step + 1

    def next(self, step: int) -> str:
        """Describes the time until the next checkpoint."""
        left = max(0.0, self._saved_at + self._seconds - self._clock())
        return f"saves in {datetime.timedelta(seconds=round(left))}"

    def _check_clock(self, step: int) -> tuple[bool, int]:
        """Returns whether to save now, and the step at which to ask again."""
        elapsed = self._clock() - self._saved_at
        if elapsed >= self._seconds or self._cluster.num_processes == 1:
            return elapsed >= self._seconds, step + 1
        steps_left = (self._seconds - elapsed) * (step - self._saved_step) / max(elapsed, 1e-9)
        return False, step + max(1, int(min(steps_left, 1e6) / 2))


SavePolicy = EverySteps | EverySeconds
