"""`--check_replicas_every`: stops a training whose devices disagree, before the step is saved."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from t2tp.processes.cluster import Cluster
from t2tp.program.replicas import ReplicaCheck, ReplicaMismatch
from t2tp.program.variables import Variables
from t2tp.trainer.errors import FailedError
from t2tp.trainer.hooks.hook import PeriodicHook, Training

_SHOWN = 3  # Max number of mismatches that the error describes.


class ReplicaMismatchError(FailedError):
    """Devices hold different values that should be equal.

    Attributes:
      step: number of steps done.
      mismatches: the slices whose copies differ.
    """

    def __init__(self, what: str, step: int, mismatches: Sequence[ReplicaMismatch]) -> None:
        super().__init__(what)
        self.step, self.mismatches = step, mismatches


class ReplicaHook(PeriodicHook):
    """Compares the copies of variables every N steps and before each checkpoint.

    Every N steps it also compares the results that processors compute from the same rows. All
    processes compare the same numbers and stop after the same step.
    """

    def __init__(
        self,
        every: int,
        variables: Variables,
        compute: Callable[[int], ReplicaMismatch | None] = lambda step: None,
    ) -> None:
        """Creates the hook, which checks every `every` steps.

        `compute` maps a step to the mismatch between the results that processors compute from the
        same rows of the step's batch; None if the results agree.
        """
        super().__init__(every)
        self._compute = compute
        self._cluster = variables.cluster
        self._check = ReplicaCheck(variables)
        self._equal_after: int | None = None

    def begin(self, training: Training) -> None:
        """Checks the initial or restored values, and arranges a check before each checkpoint."""
        training.confirm_saving = lambda: self._look(training)
        self.act(training)

    def act(self, training: Training) -> None:
        """Compares copies and results."""
        self._look(training)
        self._look_at_compute(training)

    def _look_at_compute(self, training: Training) -> None:
        """Compares the results that processors compute from the same rows of the last batch."""
        step = training.steps_done
        with training.clock.stopped("replicas"):
            found = self._compute(max(step - 1, 0))
        if found:
            raise ReplicaMismatchError(
                f"after step {step} processors compute different values from the same rows:"
                f" {found.describe(self._cluster)}. Earlier steps may be wrong too: start again"
                " from a checkpoint that you trust, without that device.",
                step,
                [found],
            )

    def _look(self, training: Training) -> None:
        """Compares the copies, unless they were already compared after this step."""
        step = training.steps_done
        if self._equal_after == step:
            return
        with training.clock.stopped("replicas"):
            found = self._check.mismatches()
        if found:
            what = _describe(found, self._cluster)
            agreed = self._equal_after
            known = "" if agreed is None else f" (they agreed after step {agreed})"
            raise ReplicaMismatchError(
                f"after step {step} devices hold different values of what should be equal{known}:"
                f" {what}. No checkpoint has these values: start"
                " again, without that device if it is named a second time; if the same variable"
                " differs on other devices, report it as a defect of t2tp.",
                step,
                found,
            )
        self._equal_after = step


def name_wrong_device(
    error: ReplicaMismatchError, variables: Variables, replay_to: Callable[[int], int]
) -> ReplicaMismatchError:
    """If no majority of copies agrees, replays the steps to find the wrong copies.

    The copies closest to the replayed values are right, and all others are wrong. Even a right copy
    may differ from the replayed values, because the wrong copy has changed the gradients of later
    steps, which all copies receive.

    Args:
      error: the check's error.
      variables: the run's variables; the replay overwrites their values.
      replay_to: replays the run up to a number of steps; returns the step of the checkpoint from
        which the replay began.

    Returns:
      The error to raise.
    """
    mismatch, cluster = error.mismatches[0], variables.cluster
    if mismatch.has_majority or mismatch.kind != "variable":
        return error
    variable = variables[mismatch.name]
    pnums = {pnum for group in mismatch.groups for pnum in group}
    before = {pnum: variable.slice_of(pnum).numpy() for pnum in pnums & {*cluster.local_pnums}}
    begun_from = replay_to(error.step)
    again = ReplicaCheck(variables).mismatches()
    if again:
        what = f"Replayed from step {begun_from}, they differ again: {_describe(again, cluster)}."
        return ReplicaMismatchError(f"{error} {what}", error.step, error.mismatches)
    here = {pnum: _distance(x, variable.slice_of(pnum).numpy()) for pnum, x in before.items()}
    parts = cluster.process_allgather("distances", here)
    distances = {int(pnum): x for part in parts for pnum, x in part.items()}
    right = min(distances.values())
    wrong = sorted(pnum for pnum, x in distances.items() if x > right)
    named = ", ".join(f"processor {pnum} ({cluster.devices[pnum]})" for pnum in wrong)
    what = f"Replayed from step {begun_from}, the wrong values are on {named or 'all of them'}."
    return ReplicaMismatchError(f"{error} {what}", error.step, error.mismatches)


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the largest difference; infinity if a difference is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.max(np.abs(x.astype(np.float64) - y.astype(np.float64)), initial=0.0))
    return math.inf if math.isnan(largest) else largest


def _describe(found: Sequence[ReplicaMismatch], cluster: Cluster) -> str:
    """Describes the first mismatches and counts the other variables."""
    text = "; ".join(mismatch.describe(cluster) for mismatch in found[:_SHOWN])
    others = {mismatch.name for mismatch in found} - {m.name for m in found[:_SHOWN]}
    return f"{text}; and so do {len(others)} more variables" if others else text
