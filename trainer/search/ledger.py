"""`Ledger`: who trains which point of a search, so that none is lost and none is trained twice.

Any number of `t2tp_tune` share a study, and each may be killed at any moment. A point is one of the
values to be tried, an attempt one trial of it in Optuna's study. A trial is enqueued in the study
with the index of its point and the number of its attempt, and exactly one process claims it. The
process then updates the trial's heartbeat every few seconds. When others have not seen it change
for a while, one of them ends the trial and enqueues the next attempt of the point. Two processes
may enqueue the same attempt at the same moment: the trial with the smaller number counts, and a
process that claims the other one discards it. A process that was too slow cannot record a
result in the trial that was ended.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState

from t2tp.ranged_hparams import RangedHParams
from t2tp.trainer.errors import UsageError
from t2tp.trainer.search.ranges import suggest
from t2tp.trainer.search.strategies import Sampling

# Attributes of a trial.
POINT, ATTEMPT, VALUES, ERROR, _HEARTBEAT = "point", "attempt", "hparams", "error", "beat"
# What Optuna raises if a trial has ended.
_ENDED = (RuntimeError, ValueError, optuna.exceptions.OptunaError)
# Heartbeats in the time after which a trial without any is considered lost.
_HEARTBEATS = 4


class LostClaimError(RuntimeError):
    """Another process has ended the trial, because it saw no heartbeat for too long."""


class Claim(NamedTuple):
    """A trial that this process runs.

    Attributes:
      trial: of the study.
      point: index of the point.
      values: of its hyperparameters.
    """

    trial: optuna.trial.Trial
    point: int
    values: dict[str, Any]


class Ledger:
    """The points of a search and the trials of this and other processes."""

    def __init__(
        self,
        study: optuna.Study,
        ranged: RangedHParams,
        sampling: Sampling,
        points: int,
        lost_after_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Enqueues the points that the study does not have yet.

        Args:
          study: of the search.
          ranged: its ranges.
          sampling: how points are drawn.
          points: number of points.
          lost_after_seconds: a trial is lost if its heartbeat does not change for so long.
          clock: returns seconds.
        """
        self._study = study
        self._ranged = ranged
        self._sampling = sampling
        self._points = points
        self._lost_after_seconds = lost_after_seconds
        self._clock = clock
        self._heartbeats = itertools.count(1)
        self._last_heartbeats: dict[int, float] = {}
        # Number of a trial of another process -> its heartbeat, and when it was first seen.
        self._seen: dict[int, tuple[int, float]] = {}
        self._owned: set[int] = set()
        known = {trial.user_attrs[POINT] for trial in self.trials()}
        for point in range(points):
            if point not in known:
                self._enqueue(point, 0, sampling.fixed(point))

    def trials(self) -> list[FrozenTrial]:
        """Returns the trials of the study, without those of other programs."""
        found = self._study.get_trials(deepcopy=False)
        return [trial for trial in found if POINT in trial.user_attrs]

    def results(self) -> dict[int, FrozenTrial]:
        """Returns the ended trial of each point that is done."""
        trials = self.trials()
        # Of each point the latest attempt, and of that the trial that was enqueued first.
        latest = {
            trial.user_attrs[POINT]: trial
            for trial in sorted(
                trials, key=lambda trial: (trial.user_attrs[ATTEMPT], -trial.number)
            )
        }
        return {
            point: trial
            for point, trial in latest.items()
            if trial.state.is_finished() and not _is_lost(trial)
        }

    def has_success(self) -> bool:
        """Whether a point is done and did not fail."""
        return any(trial.state != TrialState.FAIL for trial in self.results().values())

    def is_done(self) -> bool:
        """Whether every point is done."""
        return self.results().keys() >= set(range(self._points))

    def claim(self) -> Claim | None:
        """Takes a waiting trial; returns None if there is none."""
        while any(trial.state == TrialState.WAITING for trial in self.trials()):
            trial = self._study.ask()
            trials = self.trials()
            # None if another process was faster: Optuna has then made a trial of no point.
            enqueued = next((each for each in trials if each.number == trial.number), None)
            if enqueued is None or _is_second(enqueued, trials):
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            point = enqueued.user_attrs[POINT]
            self._owned.add(trial.number)
            self._study.sampler = self._sampling.sampler(point)
            try:
                claim = Claim(trial, point, suggest(trial, self._ranged))
            except ValueError as error:
                self._study.tell(trial, state=TrialState.FAIL)
                self._enqueue_lost()
                raise UsageError(
                    f"the ranged set {self._ranged.name} is not the one with which the study was"
                    f" begun ({error}): give another --study_name, or another --output_dir"
                ) from error
            trial.set_user_attr(VALUES, claim.values)
            self.heartbeat(claim)
            return claim
        return None

    def heartbeat(self, claim: Claim) -> None:
        """Shows other processes that the trial is alive, if the last heartbeat is old enough.

        Raises:
          LostClaimError: they have ended the trial.
        """
        now, number = self._clock(), claim.trial.number
        if (
            now - self._last_heartbeats.get(number, float("-inf"))
            < self._lost_after_seconds / _HEARTBEATS
        ):
            return
        self._last_heartbeats[number] = now
        try:
            claim.trial.set_user_attr(_HEARTBEAT, next(self._heartbeats))
        except _ENDED as error:
            raise LostClaimError(f"trial {claim.point} was ended by another process") from error

    def report(self, claim: Claim, step: int, value: float) -> bool:
        """Records an evaluation; returns whether the pruner gives the trial up.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        try:
            claim.trial.report(value, step)
            return claim.trial.should_prune()
        except _ENDED as error:
            raise LostClaimError(f"trial {claim.point} was ended by another process") from error

    def complete(self, claim: Claim, values: Sequence[float]) -> None:
        """Records the result of a trial.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        self._tell(claim, values=values)

    def prune(self, claim: Claim) -> None:
        """Records that a trial was given up.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        self._tell(claim, state=TrialState.PRUNED)

    def fail(self, claim: Claim, error: str) -> None:
        """Records that a trial failed.

        Args:
          claim: the trial.
          error: what happened.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        self.heartbeat(claim)
        try:
            claim.trial.set_user_attr(ERROR, error)
        except _ENDED as problem:
            raise LostClaimError(f"trial {claim.point} was ended by another process") from problem
        self._tell(claim, state=TrialState.FAIL)

    def release(self, claim: Claim) -> None:
        """Gives a trial back, to be continued by a later claim, of any process."""
        self._owned.discard(claim.trial.number)
        self._study.tell(claim.trial.number, state=TrialState.FAIL, skip_if_finished=True)
        self._enqueue_lost()

    def retry_failed(self) -> None:
        """Enqueues the points that failed again."""
        for trial in self.results().values():
            if trial.state == TrialState.FAIL:
                self._enqueue_next(trial)

    def sweep(self) -> None:
        """Ends the trials whose processes are lost, and enqueues their points again."""
        now = self._clock()
        for trial in self.trials():
            if trial.state != TrialState.RUNNING or trial.number in self._owned:
                continue
            heartbeat = trial.user_attrs.get(_HEARTBEAT, 0)
            known = self._seen.get(trial.number)
            if known is None or known[0] != heartbeat:
                self._seen[trial.number] = (heartbeat, now)
            elif now - known[1] > self._lost_after_seconds:
                self._end_lost(trial.number)
        self._enqueue_lost()

    def _end_lost(self, number: int) -> None:
        try:
            self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)
        except _ENDED:
            return  # Another process was faster, or the trial has just ended by itself.

    def _enqueue_lost(self) -> None:
        """Enqueues the next attempt of each lost trial that has none."""
        trials = self.trials()
        for trial in trials:
            if _is_lost(trial) and not _is_second(trial, trials):
                self._enqueue_next(trial)

    def _enqueue_next(self, trial: FrozenTrial) -> None:
        point, attempt = trial.user_attrs[POINT], trial.user_attrs[ATTEMPT] + 1
        if not any(_key(each) == (point, attempt) for each in self.trials()):
            # What was drawn before the process was lost stays.
            self._enqueue(point, attempt, {**trial.system_attrs["fixed_params"], **trial.params})

    def _enqueue(self, point: int, attempt: int, params: Mapping[str, Any]) -> None:
        self._study.enqueue_trial(dict(params), user_attrs={POINT: point, ATTEMPT: attempt})

    def _tell(self, claim: Claim, **result: Any) -> None:
        try:
            self._study.tell(claim.trial.number, **result)
        except _ENDED as error:
            raise LostClaimError(f"trial {claim.point} was ended by another process") from error
        finally:
            self._owned.discard(claim.trial.number)


def _key(trial: FrozenTrial) -> tuple[int, int]:
    return trial.user_attrs[POINT], trial.user_attrs[ATTEMPT]


def _is_lost(trial: FrozenTrial) -> bool:
    """Whether a trial ended without a result of its own."""
    return trial.state == TrialState.FAIL and ERROR not in trial.user_attrs


def _is_second(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> bool:
    """Whether another trial of the same attempt was enqueued before."""
    return any(each.number < trial.number and _key(each) == _key(trial) for each in trials)
