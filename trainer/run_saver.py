"""Saves a run beside its training: what stays of the time is the copy off the devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from absl import logging

from t2tp import checkpoint
from t2tp.checkpoint import Background, Goal, Retention
from t2tp.mesh.variables import Variables
from t2tp.trainer import checkpointing
from t2tp.trainer.errors import UsageError
from t2tp.trainer.interrupt import TrainingInterrupted
from t2tp.trainer.run_config import RunConfig


class SavingError(UsageError):
    """A checkpoint could not be written, so that training cannot go on; earlier ones are whole."""


def retention_of(config: RunConfig) -> Retention:
    """Which checkpoints of a run stay.

    Raises:
      ValueError: a setting cannot be meant.
    """
    best = Goal.parse(config.keep_best_metric) if config.keep_best_metric else None
    return Retention(config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours, best)


class RunSaver:
    """Writes the checkpoints of one training, one at a time, in a thread of its own.

    All processes save at the same steps. Their threads meet at barriers whose names have the step
    in them, which no other barrier of the training has.

    A training that fails waits for the checkpoint that is being written; one that is told to leave
    at once does not.

    Attributes:
      variables: whose values are saved.
    """

    def __init__(
        self,
        directory: Path,
        variables: Variables,
        retention: Retention,
        metadata: dict,
        saved: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Writes nothing yet.

        Args:
          directory: of the run's checkpoints.
          variables: whose values are saved.
          retention: which checkpoints stay.
          metadata: what goes into each of them.
          saved: is told the step of each checkpoint that is whole, in process 0, in the thread.
        """
        self._directory = directory
        self.variables = variables
        self._retention = retention
        self._metadata = metadata
        self._saved = saved
        self._background = Background("save")
        self._metrics: tuple[int, dict[str, float]] = (-1, {})

    def __enter__(self) -> RunSaver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None or issubclass(kind, TrainingInterrupted):
            self.wait()
        elif issubclass(kind, Exception):
            try:
                self.wait()
            except Exception as failure:  # What ended the training is what has to be said.
                logging.error("%s", failure)

    def save(self, step: int) -> None:
        """Copies the variables, and begins to write them; waits for the save before.

        Args:
          step: how many steps were done.

        Raises:
          SavingError: the save before has failed.
        """
        self.wait()
        values = checkpoint.copy_to_host(checkpointing.values_of(self.variables))
        metrics = self._metrics[1] if self._metrics[0] == step else {}
        self._background.start(lambda: self._write(step, values, metrics))

    def check(self) -> None:
        """Raises what went wrong with the last save, if it has ended; does not wait.

        Raises:
          SavingError: it could not be written.
        """
        if not self._background.is_busy:
            self.wait()

    def wait(self) -> None:
        """Waits until what was saved is on the disk; errors as of `check`."""
        try:
            self._background.wait()
        except OSError as error:
            raise SavingError(str(error)) from error

    def note_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Notes what an evaluation has found, to be saved with the checkpoint of the step."""
        self._metrics = step, dict(metrics)

    def is_best(self, step: int) -> bool:
        """Whether a step has been evaluated as better than all checkpoints, for all processes.

        Raises:
          LookupError: the metric that says what is best was not evaluated.
        """
        goal = self._retention.best
        if goal is None or self._metrics[0] != step:
            return False
        value = goal.value_of(self._metrics[1])
        if not self.variables.cluster.leads:
            answer = ""
        else:
            answer = json.dumps(self._beats_all_saved(goal, value))
        return json.loads(self.variables.cluster.agree("best checkpoint", answer))

    def _beats_all_saved(self, goal: Goal, value: float) -> bool:
        self.wait()  # The one that is being written counts, too.
        best = goal.best(checkpoint.step_folders(self._directory))
        return value == value if best is None else goal.is_better(value, best[1])

    def _write(self, step: int, values: list, metrics: dict[str, float]) -> None:
        """Writes a checkpoint, then deletes those that are too many."""
        cluster = self.variables.cluster
        checkpoint.save(
            self._directory,
            step,
            values,
            self._metadata,
            metrics=metrics,
            process_id=cluster.process_id,
            num_processes=cluster.num_processes,
            barrier=cluster.barrier,
        )
        if cluster.leads:
            self._saved(step)
            checkpoint.keep(self._directory, self._retention)
