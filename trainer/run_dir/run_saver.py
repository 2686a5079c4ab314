"""Saves a run: a background thread writes the checkpoint while training continues.

Training waits until the variables are copied from the devices to the host. If the previous save is
still being written, training first waits for it to end. A `SavePolicy` decides when to save: every
N steps, or every N seconds.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from absl import logging

from t2tp import checkpoint
from t2tp.checkpoint import Retention
from t2tp.checkpoint.background import BackgroundWorker, copy_to_host
from t2tp.checkpoint.variables import values_of
from t2tp.processes.cluster import Cluster
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.hook import Hook, Training, wait_for
from t2tp.trainer.processes.interrupt import TrainingInterrupted
from t2tp.trainer.run_dir.run_lock import RunLock


class SavingError(UsageError):
    """A checkpoint could not be written. The training ends; earlier checkpoints are intact."""


@dataclass(eq=False)
class RunSaver:
    """Writes the checkpoints of a training in a background thread, one at a time.

    All processes save at the same steps. Their background threads wait for each other at barriers.
    The names of these barriers contain the step, and so differ from those of the training's own
    barriers.

    On exit, the context waits for the checkpoint being written, also after an error or a
    `TrainingInterrupted`. After any other KeyboardInterrupt or SystemExit it does not wait.

    Attributes:
      directory: directory of the run's checkpoints.
      metadata: metadata of each checkpoint.
      saved: called with the step of each complete checkpoint, in process 0's background thread.
      metrics: step and metrics of the latest evaluation, to save with the checkpoint of the step.
    """

    directory: Path
    variables: Variables
    retention: Retention
    metadata: dict
    saved: Callable[[int], None] = lambda step: None
    _background: BackgroundWorker = field(
        default_factory=lambda: BackgroundWorker("save"), init=False
    )
    metrics: tuple[int, dict[str, float]] = field(default=(-1, {}), init=False)
    _last: Path | None = field(default=None, init=False)

    def __enter__(self) -> RunSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None or issubclass(kind, TrainingInterrupted):
                self.wait()
            elif issubclass(kind, Exception):
                try:
                    self.wait()
                except Exception as failure:  # Logged only: the training's own error is raised.
                    logging.error("%s", failure)
        finally:
            self._background.close()

    def save(self, step: int) -> None:
        """Waits for the previous save, copies the variables and starts to write the copies.

        Raises:
          SavingError: the previous save has failed.
        """
        self.wait()
        values = copy_to_host(values_of(self.variables))
        metrics = self.metrics[1] if self.metrics[0] == step else {}
        self._background.start(lambda: self._write(step, values, metrics))

    def check(self) -> None:
        """Raises SavingError if the last save has ended with an error."""
        if not self._background.is_busy:
            self.wait()

    def wait(self) -> None:
        """Waits until the last save is on the disk; raises the errors of `check`."""
        try:
            self._background.wait()
        except OSError as error:
            raise SavingError(str(error)) from error

    def is_best(self, step: int) -> bool:
        """Whether a step's metric is better than the metric of every checkpoint.

        Raises:
          LookupError: the step's evaluation did not compute the metric.
        """
        goal = self.retention.best
        if goal is None or self.metrics[0] != step:
            return False
        value, answer = goal.value_of(self.metrics[1]), False
        if self.variables.cluster.is_main_process:
            self.wait()  # So that the comparison includes the checkpoint being written.
            best = checkpoint.best_of(goal, checkpoint.step_directories(self.directory))
            answer = value == value if best is None else goal.is_better(value, best[1])
        return self.variables.cluster.process_broadcast("best checkpoint", answer)

    def _write(self, step: int, values: list, metrics: dict[str, float]) -> None:
        """Writes a checkpoint and applies the retention."""
        cluster = self.variables.cluster
        checkpoint.save(
            self.directory, step, [values], self.metadata, metrics=metrics, cluster=cluster
        )
        if cluster.is_main_process:
            if self._last is not None and not self._last.exists():
                logging.warning("%s was deleted by another program", self._last)
            self._last = checkpoint.step_directory(self.directory, step)
            self.saved(step)
            checkpoint.apply_retention(self.directory, self.retention)


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


class LockHook(Hook):
    """Ends the training if its directory was moved or its lock is lost.

    Runs before the other hooks, because some of them write files.
    """

    def __init__(self, lock: RunLock) -> None:
        """Sets the lock that the training holds."""
        self._lock = lock

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Raises RunMovedError if the lock is lost."""
        self._lock.check_held()


class CheckpointHook(Hook):
    """Saves when a checkpoint is due, when an evaluation is the best so far, and at the end.

    Attributes:
      policy: decides when a checkpoint is due.
    """

    def __init__(self, policy: SavePolicy, saver: RunSaver, lock: RunLock) -> None:
        """Sets policy, saver and the run's lock."""
        self.policy = policy
        self._saver = saver
        self._lock = lock
        self._saved_at: int | None = None

    def ends_loop(self, step: int) -> bool:
        """Whether the policy saves after this step, whatever the time."""
        return self.policy.ends_loop(step)

    def before_step(self, training: Training) -> None:
        """Raises SavingError if the last save has failed."""
        self._saver.check()

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Saves if a checkpoint is due or the step has the best metric so far."""
        step = training.steps_done
        if training.rest_of_loop:  # The variables are of a later step.
            return
        if self.policy.is_due(step) or self._saver.is_best(step):
            wait_for(training, outputs)
            self._save(training)

    def end(self, training: Training) -> None:
        """Saves the last step if needed, and waits until it is on the disk."""
        if self._saved_at != training.steps_done:
            training.confirm()
            self._save(training)
        with training.clock.stopped("checkpoint"):
            self._saver.wait()

    def _save(self, training: Training) -> None:
        # `LockHook` has checked the lock too, but hooks after it, such as evaluations, may take so
        # long that the lock is lost meanwhile.
        self._lock.check_held()
        training.confirm_saving()
        with training.clock.stopped("checkpoint"):
            self._saver.save(training.steps_done)
        self._saved_at = training.steps_done
        self.policy.saved(training.steps_done)
