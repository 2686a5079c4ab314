"""Finds the first non-finite tensor of a step by replaying it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from t2tp import mtf
from t2tp.optim.nonfinite import first_nonfinite, nonfinite_counts
from t2tp.program.program import Mesh, PlacedFeatures, Program, StepFn
from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.nonfinite import NonfiniteStepError

if TYPE_CHECKING:
    from t2tp.trainer.run_dir.run_saver import RunSaver

# step, from 0 -> the training program and the batch of the step
LoadStep = Callable[[int], tuple[Program, PlacedFeatures]]


class TrainingDivergedError(UsageError):
    """Training has stopped at a non-finite step; the step before it is saved."""


@dataclass(frozen=True)
class StepReplay:
    """Replays steps from the latest checkpoint.

    Attributes:
      replay_to: number of steps -> the step of the checkpoint that it restores to replay them; 0:
        the initial values.
      place: returns the training program and the batch of a step.
      counts: step, from 0 -> its non-finite tensors, see `nonfinite_counts`.
      saver: the run's saver.
    """

    replay_to: Callable[[int], int]
    place: LoadStep
    counts: Callable[[int], Mapping[str, np.ndarray]]
    saver: RunSaver

    def explain(self, error: NonfiniteStepError) -> TrainingDivergedError:
        """Replays up to the non-finite step, saves the step before it, and diagnoses.

        Replayed steps are identical bit for bit, so the variables are what they were before the
        non-finite step.

        Args:
          error: the step, whose outputs are lost.

        Returns:
          The error to raise: it names the first non-finite tensor.
        """
        self.saver.wait()
        logging.error("%s", error)
        last_good = error.step - 1
        if self.replay_to(last_good) < last_good:
            self.saver.save(last_good)
            self.saver.wait()
        bad_step = first_nonfinite(self.counts(last_good))
        return TrainingDivergedError(
            f"{error}. {self._cause(bad_step, last_good)} The latest checkpoint is of"
            f" step {last_good}, before it."
        )

    def _cause(self, bad_step: str | None, step: int) -> str:
        """Describes the cause in a sentence."""
        if bad_step is not None:
            return f"The first tensor that is not finite is the {bad_step}."
        program, batch = self.place(step)
        outputs = program(batch, step=step)
        names = ("loss", "scalars/gradient_norm")
        if all(np.isfinite(outputs[name]) for name in names if name in outputs):
            return "Replayed, the same step is finite, so suspect the machine before the model."
        return (
            "All tensors of the loss and all gradients are finite: the cause is inside of a loop,"
            " or a norm overflows."
        )


def counting_step(loss_fn: Callable[[Mesh, dict[str, mtf.Tensor]], mtf.Tensor]) -> StepFn:
    """Returns the step function that counts non-finite values.

    Args:
      loss_fn: builds the loss of features, as training does, and nothing else.
    """
    return lambda mesh, features: nonfinite_counts(loss_fn(mesh, features), mesh)
