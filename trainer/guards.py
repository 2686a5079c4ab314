"""Stops a training whose loss or gradients are infinite or no numbers, before that is saved."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from absl import logging

from t2tp.trainer.hooks import Hook, Training
from t2tp.trainer.json_log import JsonLog


class NonfiniteStepError(Exception):
    """A step has a loss or gradients that are not finite.

    Attributes:
      step: which one, counted from 1.
    """

    def __init__(self, step: int, loss: float, gradient_norm: float | None) -> None:
        """Says which step, and what it has shown."""
        self.step = step
        super().__init__(f"step {step} is not finite: {_shown(loss, gradient_norm)}")


class StepsHook(Hook):
    """Looks at each step once the next one is on its way, so that the devices never wait for it.

    Whoever saves or evaluates does `training.confirm()` first, so that no such step is behind a
    checkpoint. All processes see the same numbers and stop after the same step.
    """

    def __init__(self, stops: bool, log: JsonLog, first_step: int) -> None:
        """Says what to do.

        Args:
          stops: whether to raise an error at a step that is not finite.
          log: gets a line for each step that the graph's own guard has left out.
          first_step: steps that are done before.
        """
        self._stops = stops
        self._log = log
        self._step = first_step
        self._outputs: Mapping[str, np.ndarray] | None = None
        # Of a run that goes on it is in the checkpoint.
        self._skipped = None if first_step else 0.0

    def begin(self, training: Training) -> None:
        """Lets others confirm."""
        training.confirm = self._look

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Looks at the step before."""
        self._look()
        self._step, self._outputs = training.steps_done, outputs

    def end(self, training: Training) -> None:
        """Looks at the last step."""
        self._look()

    def _look(self) -> None:
        """Looks at the last step, if nobody has done that."""
        outputs, self._outputs = self._outputs, None
        if outputs is None:
            return
        loss, norm = float(outputs["loss"]), None
        if "scalars/gradient_norm" in outputs:
            norm = float(outputs["scalars/gradient_norm"])
        if self._stops and not _is_finite(loss, norm, outputs):
            raise NonfiniteStepError(self._step, loss, norm)
        if "scalars/skipped_steps" in outputs:
            self._tell_of_skipped(float(outputs["scalars/skipped_steps"]), loss, norm)

    def _tell_of_skipped(self, skipped: float, loss: float, norm: float | None) -> None:
        """Says that a step was left out, if one was."""
        before, self._skipped = self._skipped, skipped
        if before is None or skipped <= before:
            return
        facts = {"loss": loss, "gradient_norm": norm, "skipped_steps": int(skipped)}
        logging.info(
            "step %d was left out: %s (%d so far)", self._step, _shown(loss, norm), skipped
        )
        self._log.write("skipped", self._step, facts)


def _shown(loss: float, norm: float | None) -> str:
    return f"loss {loss:g}" if norm is None else f"loss {loss:g}, gradient norm {norm:g}"


def _is_finite(loss: float, norm: float | None, outputs: Mapping[str, np.ndarray]) -> bool:
    # Where the loss is scaled, gradients overflow now and then; the scale takes care of that.
    if norm is None or "scalars/loss_scale" in outputs:
        return math.isfinite(loss)
    return math.isfinite(loss) and math.isfinite(norm)
