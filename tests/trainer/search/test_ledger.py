"""Each point is trained exactly once, whatever happens to the processes."""

import time

import pytest
from optuna.trial import TrialState

from t2tp.best_metric import BestMetric
from t2tp.ranged_hparams import RangedHParams
from t2tp.trainer.errors import UsageError
from t2tp.trainer.search.ledger import Claim, Ledger, LostClaimError
from t2tp.trainer.search.study import Sampling, open_study, pruner_of, retry

LOSS = [BestMetric("loss", True)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _ranged(high: float = 1.0) -> RangedHParams:
    ranged = RangedHParams("mine")
    ranged.set_float("rate", 0.0, high)
    ranged.set_categorical("kind", ["a", "b"])
    return ranged


def _ledger(address, points=3, clock=None, ranged=None, sampler="tpe", lost_after=10.0) -> Ledger:
    """Returns a ledger like that of another process."""
    ranged = ranged or _ranged()
    study = open_study(address, "s", "mine", LOSS, lost_after)
    return Ledger(study, Sampling(sampler, ranged, 3), points, lost_after, clock or Clock())


def _wait_for_claim(ledger: Ledger) -> Claim:
    while (claim := ledger.claim()) is None:
        time.sleep(0.05)
    return claim


def test_points_are_claimed_once(study_address):
    one, two = _ledger(study_address), _ledger(study_address)
    claims = [one.claim(), two.claim(), one.claim()]
    assert sorted(claim.point for claim in claims) == [0, 1, 2]
    assert one.claim() is two.claim() is None
    for ledger, claim in zip((one, two, one), claims, strict=True):
        ledger.complete(claim, [claim.values["rate"]])
    assert one.is_done() and two.is_done()


@pytest.mark.parametrize("study_address", ["sqlite"], indirect=True)
def test_cmaes_draws_within_the_ranges(study_address):
    ledger = _ledger(study_address, sampler="cmaes", ranged=_ranged(0.01))
    for _ in range(3):
        claim = _wait_for_claim(ledger)
        assert 0 <= claim.values["rate"] <= 0.01
        ledger.complete(claim, [claim.values["rate"]])


def test_processes_that_draw_at_the_same_moment_draw_no_point_too_many(study_address):
    """The second process reads the study before the first one draws, and draws afterwards."""
    first, ranged = _ledger(study_address, 1), _ranged()
    study = open_study(study_address, "s", "mine", LOSS, 10.0)
    ask, claims = study.ask, []

    def ask_after_the_first_one():
        claims.append(first.claim())
        return ask()

    study.ask = ask_after_the_first_one
    second = Ledger(study, Sampling("tpe", ranged, 3), 1, 10.0)
    assert second.claim() is None
    assert claims[0].point == 0
    later = _ledger(study_address, 2)
    assert later.claim().point == 1
    assert later.claim() is None


def test_a_lost_trial_goes_on_with_the_same_values(study_address):
    dead = _ledger(study_address, 1, lost_after=1.0)
    lost = dead.claim()
    alive = _ledger(study_address, 1, lost_after=1.0)
    found = _wait_for_claim(alive)
    assert (found.point, found.values) == (lost.point, lost.values)
    alive.complete(found, [1.0])
    assert alive.is_done()
    with pytest.raises(LostClaimError):
        dead.complete(lost, [2.0])
    assert alive.attempts()[0].values == [1.0]


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.FAIL])
def test_a_process_that_dies_where_no_heartbeat_is_missed_loses_nothing(study_address, state):
    """It dies after it has claimed a trial, or before it has enqueued a lost trial again."""
    clock = Clock()
    alive = _ledger(study_address, 1, clock)
    trial = open_study(study_address, "s", "mine", LOSS, 10.0).ask()
    if state == TrialState.FAIL:
        open_study(study_address, "s", "mine", LOSS, 10.0).tell(trial, state=state)
    assert alive.claim() is None and not alive.is_done()
    clock.now = 11.0
    assert alive.claim().point == 0


def test_a_trial_that_is_enqueued_again_twice_counts_once(study_address):
    one = _ledger(study_address, 1)
    one.release(one.claim())
    retry(open_study(study_address, "s", "mine", LOSS, 10.0), one.attempts()[0])
    claim = one.claim()
    one.complete(claim, [0.0])
    assert one.claim() is None and one.is_done()


def test_failed_points_are_done_until_a_search_starts_again(study_address):
    ledger = _ledger(study_address, 1)
    ledger.fail(ledger.claim(), "exit code 1")
    assert ledger.is_done() and not ledger.has_success() and ledger.claim() is None
    again = _ledger(study_address, 1)
    assert not again.is_done()
    again.complete(again.claim(), [0.0])
    assert again.attempts()[0].state == TrialState.COMPLETE


def test_points_of_a_grid_are_all_tried(study_address):
    ledger = _ledger(study_address, 6, sampler="grid")
    tried = []
    while (claim := ledger.claim()) is not None:
        tried.append((claim.values["rate"], claim.values["kind"]))
    assert sorted(tried) == [(r, k) for r in (0.0, 0.5, 1.0) for k in ("a", "b")]


def test_a_study_of_something_else_is_refused(study_address):
    _ledger(study_address)
    with pytest.raises(UsageError, match="searches mine by loss"):
        open_study(study_address, "s", "mine", [BestMetric("accuracy", False)], 10.0)
    with pytest.raises(UsageError, match="searches mine by loss"):
        open_study(study_address, "s", "mine", [BestMetric("loss", False)], 10.0)


def test_other_ranges_than_before_are_refused(study_address):
    ledger = _ledger(study_address, 1)
    ledger.release(ledger.claim())
    other = RangedHParams("mine")
    other.set_float("rate", 0.0, 1.0)
    other.set_float("kind", 0.0, 1.0)
    with pytest.raises(UsageError, match="is not the one with which the study was begun"):
        _ledger(study_address, 1, ranged=other).claim()


def _run(address: str, pruner: str, parallel: int, points: int, steps: range) -> tuple[float, int]:
    """Returns the best value of a search whose losses come from a formula, and its total steps."""
    ranged = RangedHParams("mine")
    ranged.set_float("rate", 1e-4, 1e-1, scale=ranged.LOG_SCALE)
    ranged.set_discrete("width", [1, 2])
    study = open_study(address, pruner, "mine", LOSS, 1000.0)
    study.pruner = pruner_of(pruner, steps[0], steps[-1])
    ledger = Ledger(study, Sampling("grid", ranged, points), points * 2, 10.0)
    running, best, taken = {}, float("inf"), 0
    while not ledger.is_done():
        while len(running) < parallel and (claim := ledger.claim()) is not None:
            running[claim.point] = (claim, iter(steps))
        for point, (claim, left) in list(running.items()):
            step = next(left)
            taken += steps.step
            loss = 2 + abs(claim.values["rate"] - 0.01) * 9 + 1 / claim.values["width"] + 9 / step
            is_worse = ledger.report(claim, step, loss)
            if step == steps[-1]:
                ledger.complete(claim, [loss])
                best = min(best, loss)
                del running[point]
            elif is_worse:
                ledger.prune(claim)
                del running[point]
    return best, taken


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize("study_address", ["sqlite"], indirect=True)
def test_pruners_find_what_the_full_grid_finds_in_fewer_steps(study_address):
    steps = range(30, 271, 30)
    best, all_steps = _run(study_address, "none", 4, 6, steps)
    for pruner, share in (("asha", 0.5), ("hyperband", 0.9), ("median", 0.9)):
        found, taken = _run(study_address, pruner, 4, 6, steps)
        assert found <= 1.02 * best
        assert taken <= share * all_steps
