"""`--check_replicas_every`: stops a training whose devices disagree, before it is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from t2tp.processes.cluster import Cluster
from t2tp.program.replicas import ReplicaCheck, ReplicaMismatch
from t2tp.program.variables import Variables
from t2tp.trainer.errors import FailedError
from t2tp.trainer.hooks.hook import Hook, Training, wait_for
from t2tp.trainer.hooks.json_log import JsonLog

_SHOWN = 3  # Variables that the error names.


class ReplicaMismatchError(FailedError):
    """Devices hold different values of what should be equal."""


class ReplicaHook(Hook):
    """Compares the copies of variables every N steps and before each checkpoint.

    All processes compare the same numbers and stop after the same step.
    """

    def __init__(self, every: int, variables: Variables, log: JsonLog) -> None:
        """Sets interval and variables.

        Args:
          every: steps from one check to the next.
          variables: variables to compare.
          log: records a mismatch.
        """
        self._every = every
        self._cluster = variables.cluster
        self._check = ReplicaCheck(variables)
        self._log = log
        self._equal_after: int | None = None

    def begin(self, training: Training) -> None:
        """Checks the initial or restored values, and from then on each checkpoint."""
        training.confirm_saving = lambda: self._look(training)
        self._look(training)

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Checks if it is due."""
        if training.steps_done % self._every == 0:
            wait_for(training, outputs)
            self._look(training)

    def _look(self, training: Training) -> None:
        """Compares the copies, unless that was done after this step."""
        step = training.steps_done
        if self._equal_after == step:
            return
        with training.clock.stopped("replicas"):
            found = self._check.mismatches()
        if found:
            what = _describe(found, self._cluster)
            self._log.write("replicas_differ", step, {"what": what})
            raise ReplicaMismatchError(
                f"{_when(step, self._equal_after)}: {what}. No checkpoint has these values: start"
                " again, without that device if it is named a second time; if the same variable"
                " differs on other devices, report it as a defect of t2tp."
            )
        self._equal_after = step


def _when(step: int, equal_after: int | None) -> str:
    """The beginning of the error: after which step, and when all was well."""
    differ = f"after step {step} devices hold different values of what should be equal"
    return differ if equal_after is None else f"{differ} (they agreed after step {equal_after})"


def _describe(found: Sequence[ReplicaMismatch], cluster: Cluster) -> str:
    """Names the first mismatches, and the number of the others."""
    text = "; ".join(mismatch.describe(cluster) for mismatch in found[:_SHOWN])
    others = {mismatch.variable for mismatch in found} - {m.variable for m in found[:_SHOWN]}
    return f"{text}; and so do {len(others)} more variables" if others else text
