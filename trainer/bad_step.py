"""Finds where a step that is not finite went wrong, by doing it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from absl import logging

from t2tp import mtf
from t2tp.mesh.program import Mesh, Placed, Program, StepFn
from t2tp.mesh.variables import Variables
from t2tp.optim.finite import first_nonfinite, nonfinite_counts
from t2tp.trainer.errors import UsageError
from t2tp.trainer.guards import NonfiniteStepError
from t2tp.trainer.run_saver import RunSaver

# step, from 0 -> the program that trains on its batch, and the batch
Place = Callable[[int], tuple[Program, Placed]]


class TrainingDivergedError(UsageError):
    """Training was stopped at a step that is not finite, and the one before is saved."""


@dataclass(frozen=True)
class Rerun:
    """What is needed to go back to the values of before a step.

    Attributes:
      go_back: gives the variables the values of the newest checkpoint, or those that the run began
        with; returns their step.
      place: finds the program and the batch of a step.
      counts: step, from 0 -> what is not finite in it, as `nonfinite_counts` says.
      saver: of the run.
    """

    go_back: Callable[[], int]
    place: Place
    counts: Callable[[int], Mapping[str, np.ndarray]]
    saver: RunSaver

    def explain(self, bad: NonfiniteStepError) -> TrainingDivergedError:
        """Does the steps since the newest checkpoint again, up to a bad step; saves and looks.

        Steps are the same bit for bit when they are done again. So the variables are what they were
        before the bad step, a checkpoint of which is then the newest.

        Args:
          bad: the step, all of whose outputs are lost.

        Returns:
          the error to raise: it names the first tensor that is not finite.
        """
        self.saver.wait()
        saved, last_good = self.go_back(), bad.step - 1
        logging.error("%s", bad)
        if saved < last_good:
            logging.info(
                "doing %d steps again from step %d on, to find where it begins (Ctrl-C: leave)",
                last_good - saved,
                saved,
            )
            for step in range(saved, last_good):
                program, batch = self.place(step)
                program(batch, step=step)
            self.saver.save(last_good)
            self.saver.wait()
        found = first_nonfinite(self.counts(last_good))
        return TrainingDivergedError(
            f"{bad}. {self._cause(found, last_good)} The newest checkpoint is of"
            f" step {last_good}, before it."
        )

    def _cause(self, found: str | None, step: int) -> str:
        """Where it begins, as a sentence."""
        if found is not None:
            return f"The first tensor that is not finite is the {found}."
        program, batch = self.place(step)
        outputs = program(batch, step=step)
        names = ("loss", "scalars/gradient_norm")
        if all(np.isfinite(outputs[name]) for name in names if name in outputs):
            return (
                "Done again, the same step is finite: look for a fault of the machine before you"
                " look for one of the model."
            )
        return (
            "No tensor of the loss and no gradient shows it: it begins inside of a loop, or a norm"
            " overflows."
        )


def begin_anew(variables: Variables, fresh: Variables) -> None:
    """Gives variables the initial values that they had.

    Args:
      variables: of a run.
      fresh: of the same layout, cluster and seed, and empty.
    """
    for variable in variables:
        initial = fresh.create(variable.spec)
        for mine, theirs in zip(variable.slices, initial.slices, strict=True):
            mine.assign(theirs)


def counting_step(loss_fn: Callable[[Mesh, dict[str, mtf.Tensor]], mtf.Tensor]) -> StepFn:
    """The step of the program that counts what is not finite.

    Args:
      loss_fn: builds the loss of features, as training does, and nothing else.
    """
    return lambda mesh, features: nonfinite_counts(loss_fn(mesh, features), mesh)
