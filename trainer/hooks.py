"""What happens around the steps of a training: reports, checkpoints, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from t2tp.trainer.clock import TrainingClock


def _nothing() -> None:
    pass


@dataclass
class Training:
    """A training that goes on, as its hooks see it.

    Attributes:
      steps_done: how many steps were done since the beginning of the run.
      max_steps: how many will have been done at the end.
      clock: measures the time spent training; a hook that takes long stops it.
      stop_reason: a hook that wants the training to end after this step says why. Of several
        processes all have to say so after the same step.
      confirm: raises an error if a step so far was none to go on from, such as one whose loss is
        NaN. Whoever saves the variables calls it before.
    """

    steps_done: int
    max_steps: int
    clock: TrainingClock = field(default_factory=TrainingClock)
    stop_reason: str = ""
    confirm: Callable[[], None] = _nothing


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


class EvaluationHook(Hook):
    """Evaluates every so many steps, but not at the last, which whoever trains can do.

    It is called before the hook that saves: what is saved has been evaluated if that was due.
    """

    def __init__(
        self, every: int, evaluate: Callable[[], object], plateau: Callable[[], str]
    ) -> None:
        """Says how often, and how.

        Args:
          every: steps from one evaluation to the next.
          evaluate: evaluates the present values of the variables.
          plateau: why training should end after the evaluation; "" if it should not.
        """
        self._every = every
        self._evaluate = evaluate
        self._plateau = plateau

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Evaluates if it is time."""
        if training.steps_done % self._every == 0 and training.steps_done < training.max_steps:
            wait_for(training, outputs)
            with training.clock.stopped("evaluation"):
                self._evaluate()
                training.stop_reason = self._plateau()


def wait_for(training: Training, outputs: Mapping[str, np.ndarray]) -> None:
    """Waits until the devices have done the step, so that the clock has counted their work.

    Raises:
      NonfiniteStepError: see `guards`; the step is none to go on from.
    """
    float(outputs["loss"])
    training.confirm()
