"""Stops a training at a non-finite loss or gradient, before the step is saved."""

import math
from collections.abc import Mapping

import numpy as np
from absl import logging

from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.hooks.json_log import JsonLog


class NonfiniteStepError(Exception):
    """A step has a non-finite loss or gradient.

    Attributes:
      step: number of the step, from 1.
    """

    def __init__(self, step: int, loss: float, gradient_norm: float | None) -> None:
        self.step = step
        super().__init__(f"step {step} is not finite: {_shown(loss, gradient_norm)}")


class TrainingDivergedError(UsageError):
    """Training has stopped at a non-finite step; the previous step is saved."""

    def __init__(self, error: NonfiniteStepError, cause: str) -> None:
        super().__init__(
            f"{error}. {cause} The latest checkpoint is of step {error.step - 1}, before it."
        )


def replayed_cause(outputs: Mapping[str, np.ndarray]) -> str:
    """Returns the likely cause if the replay of a non-finite step has no non-finite tensor."""
    names = ("loss", "scalars/gradient_norm")
    if all(np.isfinite(outputs[name]) for name in names if name in outputs):
        return "Replayed, the same step is finite, so suspect the machine before the model."
    return (
        "All tensors and gradients outside of loops are finite: the cause is inside a loop,"
        " or a norm overflows."
    )


class NonfiniteHook(Hook):
    """Checks the steps of a launch after the next launch, so that the devices never wait.

    Saving and evaluating call `training.confirm()` first, so a non-finite step is never saved. All
    processes see the same numbers and stop after the same step.
    """

    def __init__(self, stops: bool, log: JsonLog, first_step: int) -> None:
        """Sets the reaction to a non-finite step.

        Args:
          stops: whether to raise an error at a non-finite step. With loss scaling, gradients may
            overflow while the scale can still be lowered; see `_is_finite`.
          log: records each step that the graph has skipped.
          first_step: steps done before this training.
        """
        self._stops = stops
        self._log = log
        self._unchecked: list[tuple[int, Mapping[str, np.ndarray]]] = []
        self._launched = first_step
        # Skipped steps so far. A resumed run restores this counter on the devices, so its value is
        # unknown (None) until the first step returns it.
        self._skipped = None if first_step else 0.0

    def begin(self, training: Training) -> None:
        """Sets `training.confirm`."""
        training.confirm = self._look

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Checks the steps of the previous launch."""
        if training.steps_launched != self._launched:
            self._look()
        self._launched = training.steps_launched
        self._unchecked.append((training.steps_done, outputs))

    def end(self, training: Training) -> None:
        """Checks the last steps."""
        self._look()

    def _look(self) -> None:
        """Checks the steps that have not been checked."""
        unchecked, self._unchecked = self._unchecked, []
        for step, outputs in unchecked:
            self._check(step, outputs)

    def _check(self, step: int, outputs: Mapping[str, np.ndarray]) -> None:
        """Checks one step."""
        loss, norm = float(outputs["loss"]), None
        if "scalars/gradient_norm" in outputs:
            norm = float(outputs["scalars/gradient_norm"])
        if "scalars/skipped_steps" in outputs:
            self._report_skipped(step, float(outputs["scalars/skipped_steps"]), loss, norm)
        if self._stops and not _is_finite(loss, norm, outputs):
            raise NonfiniteStepError(step, loss, norm)

    def _report_skipped(self, step: int, skipped: float, loss: float, norm: float | None) -> None:
        """Logs a step if it was skipped."""
        before, self._skipped = self._skipped, skipped
        if before is None or skipped <= before:
            return
        facts = {"loss": loss, "gradient_norm": norm, "skipped_steps": int(skipped)}
        logging.info("skipped step %d: %s (%d skipped so far)", step, _shown(loss, norm), skipped)
        self._log.write("skipped", step, facts)


def _shown(loss: float, norm: float | None) -> str:
    return f"loss {loss:g}" if norm is None else f"loss {loss:g}, gradient norm {norm:g}"


def _is_finite(loss: float, norm: float | None, outputs: Mapping[str, np.ndarray]) -> bool:
    """Whether a step is finite, apart from gradients that a smaller loss scale may repair."""
    if norm is None or float(outputs.get("scalars/loss_scale", 1.0)) > 1.0:
        return math.isfinite(loss)
    return math.isfinite(loss) and math.isfinite(norm)
