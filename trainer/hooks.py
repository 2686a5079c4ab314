"""What happens around the steps of a training: reports, checkpoints, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from t2tp.trainer.clock import TrainingClock
from t2tp.trainer.progress import Progress
from t2tp.trainer.summaries import SummaryWriter


@dataclass
class Training:
    """A training that goes on, as its hooks see it.

    Attributes:
      steps_done: how many steps were done since the beginning of the run.
      max_steps: how many will have been done at the end.
      clock: measures the time spent training; a hook that takes long stops it.
    """

    steps_done: int
    max_steps: int
    clock: TrainingClock = field(default_factory=TrainingClock)


class Hook:
    """Is called around the steps; a subclass overrides what it needs.

    `outputs` holds the step's `loss`, `metrics/...` and `scalars/...`. Asking for a value waits for
    the devices, so a hook does that only now and then.
    """

    def begin(self, training: Training) -> None:
        """Is called once before the first step."""

    def before_step(self, training: Training) -> None:
        """Is called before each step."""

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Is called after each step, which `training.steps_done` then counts."""

    def end(self, training: Training) -> None:
        """Is called once after the last step (an interrupted training has one); not on errors."""


class ReportHook(Hook):
    """Measures the speed, shows a line, writes scalars: every so many steps, and at the last."""

    def __init__(
        self, every: int, batch_size: int | None, progress: Progress, summaries: SummaryWriter
    ) -> None:
        """Says how often, and where to.

        Args:
          every: steps from one report to the next.
          batch_size: examples a step; None if that is not always the same number.
          progress: shows loss and speed.
          summaries: gets all scalars.
        """
        self._every = every
        self._batch_size = batch_size
        self._progress = progress
        self._summaries = summaries
        self._last = (0, 0.0)

    def begin(self, training: Training) -> None:
        """Starts measuring."""
        self._last = (training.steps_done, training.clock.seconds())

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Reports if it is time."""
        step = training.steps_done
        self._progress.advance()
        if step % self._every == 0 or step == training.max_steps:
            scalars = _scalars(outputs)  # Waits for the devices: only now the time is known.
            scalars.update(self._speed(training, outputs))
            self._summaries.write(step, scalars)
            self._progress.report(step, scalars)

    def end(self, training: Training) -> None:
        """Closes the event file."""
        self._summaries.close()

    def _speed(self, training: Training, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Seconds a step since the last report, and what follows from it."""
        steps, seconds = training.steps_done, training.clock.seconds()
        step_time = (seconds - self._last[1]) / (steps - self._last[0])
        self._last = (steps, seconds)
        speed = {"step_time": step_time}
        if self._batch_size is not None:
            speed["examples_per_second"] = self._batch_size / step_time
        if "metrics/tokens" in outputs:
            speed["tokens_per_second"] = float(outputs["metrics/tokens"]) / step_time
        return speed


class CheckpointHook(Hook):
    """Saves every so many steps, and where training ends."""

    def __init__(self, every: int, save: Callable[[int], None]) -> None:
        """Says how often, and how.

        Args:
          every: steps from one checkpoint to the next.
          save: is called with the number of steps done.
        """
        self._every = every
        self._save = save
        self._saved_at: int | None = None

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Saves if it is time."""
        if training.steps_done % self._every == 0:
            _wait_for(outputs)
            self._save_now(training)

    def end(self, training: Training) -> None:
        """Saves the last step, if that was not done."""
        if self._saved_at != training.steps_done:
            self._save_now(training)

    def _save_now(self, training: Training) -> None:
        with training.clock.stopped():
            self._save(training.steps_done)
        self._saved_at = training.steps_done


class EvaluationHook(Hook):
    """Evaluates every so many steps, but not at the last, which whoever trains can do.

    It is called before the hook that saves: what is saved has been evaluated if that was due.
    """

    def __init__(self, every: int, evaluate: Callable[[], object]) -> None:
        """Says how often, and how.

        Args:
          every: steps from one evaluation to the next.
          evaluate: evaluates the present values of the variables.
        """
        self._every = every
        self._evaluate = evaluate

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Evaluates if it is time."""
        if training.steps_done % self._every == 0 and training.steps_done < training.max_steps:
            _wait_for(outputs)
            with training.clock.stopped():
                self._evaluate()


def _wait_for(outputs: Mapping[str, np.ndarray]) -> None:
    """Waits until the devices have done the step, so that the clock has counted their work."""
    float(outputs["loss"])


def _scalars(outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The step's loss and scalars, under the names that TensorBoard shows."""
    named = {name: name.removeprefix("scalars/") for name in outputs if name.startswith("scalars/")}
    return {"loss": float(outputs["loss"])} | {
        shown: float(outputs[name]) for name, shown in named.items()
    }
