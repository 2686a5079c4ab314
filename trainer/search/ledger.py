"""`Ledger` records which process trains which point of a search, so that no point is lost.

Any number of `t2tp_tune` processes share a study, and each may be killed at any moment. A point is
a set of hyperparameter values; each attempt at a point is a trial in Optuna's study. One process
claims the trial and records heartbeats. When the heartbeats stop, Optuna ends the trial and
enqueues a new attempt at the point. Points are numbered in the order in which they were drawn:

    trial   0         1         2         3                      4
    point   0         1         2         1, again: 1 was lost   3
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState

from t2tp.trainer.errors import UsageError
from t2tp.trainer.search.study import Sampling, retry, suggest

# User attributes of a trial; a new attempt inherits them.
VALUES, ERROR, _CLAIMED, _SURPLUS = "hparams", "error", "claimed", "surplus"
# Optuna's exceptions for a trial that has ended.
_ENDED = (RuntimeError, ValueError, optuna.exceptions.OptunaError)
_RESULT = (TrialState.COMPLETE, TrialState.PRUNED)


class LostClaimError(RuntimeError):
    """Another process has ended the trial, because the trial had no heartbeat for too long."""


class Claim(NamedTuple):
    """A trial that this process runs, with the index and the hyperparameter values of its point."""

    trial: optuna.trial.Trial
    point: int
    values: dict[str, Any]


@dataclass(eq=False)
class Ledger:
    """The points of a search and the trials of this and other processes.

    If another process has ended a trial, the methods that record something about the trial raise
    LostClaimError. `release` does nothing in this case.

    Attributes:
      study: the study in Optuna.
      sampling: draws the points.
      points: the number of points.
      lost_after_seconds: a trial without a heartbeat for this time is lost.
      clock: returns monotonic seconds.
    """

    study: optuna.Study
    sampling: Sampling
    points: int
    lost_after_seconds: float
    clock: Callable[[], float] = time.monotonic
    _last_heartbeats: dict[int, float] = field(default_factory=dict, init=False)
    # Trial number -> time when this process first saw the trial without an owner.
    _orphans: dict[int, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Enqueues a new attempt at each point whose last attempt failed."""
        for trial in self.attempts().values():
            if trial.state == TrialState.FAIL:
                retry(self.study, trial)

    def attempts(self) -> dict[int, FrozenTrial]:
        """Returns point -> the attempt that counts: the one with a result, or else the latest."""
        trials = self.study.get_trials(deepcopy=False)
        drawn = [each for each in trials if _first(each) == each.number]
        wanted = [each.number for each in drawn if _SURPLUS not in each.user_attrs]
        points = {number: point for point, number in enumerate(wanted)}
        found: dict[int, FrozenTrial] = {}
        for trial in trials:
            point = points.get(_first(trial), self.points)
            if point < self.points and not (point in found and found[point].state in _RESULT):
                found[point] = trial
        return found

    def has_success(self) -> bool:
        """Whether any point has a result, pruned or not."""
        return any(trial.state in _RESULT for trial in self.attempts().values())

    def is_done(self) -> bool:
        """Whether every point has a result or failed with an error of its own."""
        attempts = self.attempts()
        return len(attempts) == self.points and all(map(_is_done, attempts.values()))

    def claim(self) -> Claim | None:
        """Claims a waiting attempt at a lost point, or draws a new point; None if all are claimed.

        Raises:
          UsageError: the study was begun with another ranged set.
        """
        fail_stale_trials(self.study)
        self._rescue_orphans()
        while True:
            attempts = self.attempts()
            waiting = any(each.state == TrialState.WAITING for each in attempts.values())
            if not waiting and len(attempts) >= self.points:
                return None
            trial = self.study.ask()
            self._beat(trial)
            attempts = self.attempts()
            point = next((p for p, each in attempts.items() if each.number == trial.number), None)
            if point is not None:
                return self._drawn(trial, point)
            # Another process took the point at the same moment, or has already finished it.
            trial.set_user_attr(_SURPLUS, True)
            self.study.tell(trial, state=TrialState.FAIL)

    def _drawn(self, trial: optuna.trial.Trial, point: int) -> Claim:
        self.study.sampler = self.sampling.sampler(point)
        try:
            claim = Claim(trial, point, suggest(trial, self.sampling.ranged))
        except ValueError as error:
            self.study.tell(trial, state=TrialState.FAIL)
            raise UsageError(
                f"the ranged set {self.sampling.ranged.name} is not the one with which the study"
                f" was begun ({error}): give another --study_name, or another --output_dir"
            ) from error
        trial.set_user_attr(VALUES, claim.values)
        trial.set_user_attr(ERROR, "")
        return claim

    def heartbeat(self, claim: Claim) -> None:
        """Shows other processes that the trial is alive; does nothing after a recent heartbeat.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        last = self._last_heartbeats[claim.trial.number]
        if self.clock() - last >= self.lost_after_seconds / 4:
            with _unless_ended(claim):
                self._beat(claim.trial)

    def _beat(self, trial: optuna.trial.Trial) -> None:
        self._last_heartbeats[trial.number] = self.clock()
        trial.set_user_attr(_CLAIMED, trial.number)  # Raises an error for a trial that has ended.
        self.study._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]

    def report(self, claim: Claim, step: int, value: float) -> bool:
        """Records an evaluation; returns whether the pruner stops the trial.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        with _unless_ended(claim):
            claim.trial.report(value, step)
            return claim.trial.should_prune()

    def complete(self, claim: Claim, values: Sequence[float]) -> None:
        """Records the result of a trial.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        with _unless_ended(claim):
            self.study.tell(claim.trial, values)

    def prune(self, claim: Claim) -> None:
        """Records that a trial was pruned.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        with _unless_ended(claim):
            self.study.tell(claim.trial, state=TrialState.PRUNED)

    def fail(self, claim: Claim, error: str) -> None:
        """Records that a trial failed because of `error`.

        Raises:
          LostClaimError: another process has ended the trial.
        """
        with _unless_ended(claim):
            claim.trial.set_user_attr(ERROR, error)
            self.study.tell(claim.trial, state=TrialState.FAIL)

    def release(self, claim: Claim) -> None:
        """Ends a trial and enqueues a new attempt at its point."""
        with contextlib.suppress(LostClaimError), _unless_ended(claim):
            retry(self.study, self.study.tell(claim.trial, state=TrialState.FAIL))

    def _rescue_orphans(self) -> None:
        """Enqueues points again if Optuna cannot notice that their process was killed.

        A process may be killed after it claimed a trial and before the first heartbeat, or after it
        ended a lost trial and before it enqueued the next attempt.
        """
        for trial in self.attempts().values():
            is_claimed = trial.user_attrs.get(_CLAIMED) == trial.number
            is_running = trial.state == TrialState.RUNNING and not is_claimed
            if not is_running and (trial.state != TrialState.FAIL or _is_done(trial)):
                continue
            seen = self._orphans.setdefault(trial.number, self.clock())
            if self.clock() - seen > self.lost_after_seconds:
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                retry(self.study, trial)


def _first(trial: FrozenTrial) -> int:
    """Returns the number of the first attempt at a trial's point."""
    number = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return trial.number if number is None else number


def _is_done(trial: FrozenTrial) -> bool:
    """Whether a trial ended with a result or its own error; a lost trial is not done."""
    return trial.state in _RESULT or bool(
        trial.state == TrialState.FAIL and trial.user_attrs.get(ERROR)
    )


@contextlib.contextmanager
def _unless_ended(claim: Claim) -> Iterator[None]:
    try:
        yield
    except _ENDED as error:
        raise LostClaimError(f"trial {claim.point} was ended by another process") from error
