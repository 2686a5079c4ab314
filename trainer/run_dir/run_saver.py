"""Saves a run: a background thread writes the checkpoint while training continues.

Training waits until the variables are copied from the devices to the host. If the previous save is
still being written, training first waits for it to end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from absl import logging

from t2tp import checkpoint
from t2tp.checkpoint import Retention
from t2tp.checkpoint.background import BackgroundWorker, copy_to_host
from t2tp.checkpoint.variables import values_of
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.hook import Hook, Training, wait_for
from t2tp.trainer.processes.interrupt import TrainingInterrupted
from t2tp.trainer.run_dir.run_lock import RunLock
from t2tp.trainer.run_dir.save_policy import SavePolicy


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
    """

    directory: Path
    variables: Variables
    retention: Retention
    metadata: dict
    saved: Callable[[int], None] = lambda step: None
    _background: BackgroundWorker = field(
        default_factory=lambda: BackgroundWorker("save"), init=False
    )
    _metrics: tuple[int, dict[str, float]] = field(default=(-1, {}), init=False)
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
        metrics = self._metrics[1] if self._metrics[0] == step else {}
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

    def note_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps an evaluation's metrics, to save them with the checkpoint of the step."""
        self._metrics = step, dict(metrics)

    def is_best(self, step: int) -> bool:
        """Whether a step's metric is better than the metric of every checkpoint.

        Raises:
          LookupError: the step's evaluation did not compute the metric.
        """
        goal = self.retention.best
        if goal is None or self._metrics[0] != step:
            return False
        value, answer = goal.value_of(self._metrics[1]), False
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
    """Saves when a checkpoint is due, when an evaluation is the best so far, and at the end."""

    def __init__(self, policy: SavePolicy, saver: RunSaver, lock: RunLock) -> None:
        """Sets policy, saver and the run's lock."""
        self._policy = policy
        self._saver = saver
        self._lock = lock
        self._saved_at: int | None = None

    def next(self, step: int) -> str:
        """Describes when the next checkpoint is due."""
        return self._policy.next(step)

    def ends_loop(self, step: int) -> bool:
        """Whether the policy saves after this step, whatever the time."""
        return self._policy.ends_loop(step)

    def before_step(self, training: Training) -> None:
        """Raises SavingError if the last save has failed."""
        self._saver.check()

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Saves if a checkpoint is due or the step has the best metric so far."""
        step = training.steps_done
        if training.rest_of_loop:  # The variables are of a later step.
            return
        if self._policy.is_due(step) or self._saver.is_best(step):
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
        self._policy.saved(training.steps_done)
