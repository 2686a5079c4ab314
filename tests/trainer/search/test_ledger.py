"""Who trains which point: each exactly once, whatever happens to the processes."""

from __future__ import annotations

import optuna
import pytest
from optuna.trial import TrialState

from t2tp.ranged_hparams import RangedHParams
from t2tp.trainer.errors import UsageError
from t2tp.trainer.search.ledger import Ledger, LostClaimError
from t2tp.trainer.search.objectives import Objective
from t2tp.trainer.search.storage import open_study
from t2tp.trainer.search.strategies import Sampling, pruner_of

LOSS = [Objective("loss", True)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _ranged(high: float = 1.0) -> RangedHParams:
    ranged = RangedHParams("mine")
    ranged.set_float("rate", 0.0, high)
    ranged.set_categorical("kind", ["a", "b"])
    return ranged


@pytest.fixture
def address(study_address) -> str:
    return study_address


def pytest_generate_tests(metafunc):
    if "address" in metafunc.fixturenames:
        stores = ["journal", "sqlite", "postgresql"]
        metafunc.parametrize("study_address", stores, indirect=True)


def _ledger(address, points=3, clock=None, ranged=None, sampler="tpe") -> Ledger:
    """A ledger as a process of its own has it."""
    ranged = ranged or _ranged()
    sampling = Sampling(sampler, ranged, 3)
    study = open_study(address, "s", "mine", LOSS)
    return Ledger(study, ranged, sampling, points, 10.0, clock or Clock())


def test_points_are_claimed_once(address):
    one, two = _ledger(address), _ledger(address)
    claims = [one.claim(), two.claim(), one.claim()]
    assert sorted(claim.point for claim in claims) == [0, 1, 2]
    assert one.claim() is two.claim() is None
    for ledger, claim in zip((one, two, one), claims, strict=True):
        ledger.complete(claim, [claim.values["rate"]])
    assert one.is_done() and two.is_done()


def test_points_that_two_processes_enqueue_are_run_once(address, monkeypatch):
    """The second one has looked before the first one has enqueued any."""
    ranged = _ranged()
    empty = open_study(address, "s", "mine", LOSS)
    _ledger(address)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "trials", lambda self: [])
        Ledger(empty, ranged, Sampling("tpe", ranged, 3), 3, 10.0)
    ledger = _ledger(address)
    points = []
    while (claim := ledger.claim()) is not None:
        points.append(claim.point)
        ledger.complete(claim, [0.0])
    assert sorted(points) == [0, 1, 2] and ledger.is_done()


def test_a_lost_trial_goes_on_with_the_same_values(address):
    clock = Clock()
    dead, alive = _ledger(address, 1), _ledger(address, 1, clock)
    lost = dead.claim()
    alive.sweep()
    clock.now = 11.0
    alive.sweep()
    found = alive.claim()
    assert (found.point, found.values) == (lost.point, lost.values)
    alive.complete(found, [1.0])
    assert alive.is_done()
    with pytest.raises(LostClaimError):
        dead.complete(lost, [2.0])
    assert alive.results()[0].values == [1.0]


def test_a_trial_with_a_heartbeat_is_not_lost(address):
    clock = Clock()
    busy, other = _ledger(address, 1, clock), _ledger(address, 1, clock)
    claim = busy.claim()
    for _ in range(5):
        clock.now += 6.0
        busy.heartbeat(claim)
        other.sweep()
    assert other.claim() is None


def test_a_process_that_dies_between_ending_a_trial_and_enqueueing_it_again_loses_nothing(
    address, monkeypatch
):
    clock = Clock()
    dead, dies, alive = _ledger(address, 1), _ledger(address, 1, clock), _ledger(address, 1)
    lost = dead.claim()
    dies.sweep()
    clock.now = 11.0
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_enqueue_lost", lambda self: None)
        dies.sweep()
    alive.sweep()
    assert alive.claim().values == lost.values


def test_a_trial_that_is_enqueued_again_twice_is_run_once(address, monkeypatch):
    one = _ledger(address, 1)
    one.release(one.claim())
    (first, _) = one.trials()
    one._enqueue_next(first)
    with monkeypatch.context() as patched:  # Another process that saw no second attempt.
        patched.setattr(Ledger, "trials", lambda self: [first])
        one._enqueue_next(first)
    assert len(one.trials()) == 3
    one.complete(one.claim(), [0.0])
    assert one.claim() is None and one.is_done()
    one.sweep()
    assert one.claim() is None


def test_a_trial_of_another_program_is_left_alone(address):
    ledger = _ledger(address, 1)
    open_study(address, "s", "mine", LOSS).enqueue_trial({"rate": 0.5})
    assert ledger.claim().point == 0
    assert ledger.claim() is None


def test_failed_points_are_done_until_they_are_retried(address):
    ledger = _ledger(address, 1)
    ledger.fail(ledger.claim(), "exit code 1")
    assert ledger.is_done() and not ledger.has_success() and ledger.claim() is None
    ledger.retry_failed()
    assert not ledger.is_done()
    ledger.complete(ledger.claim(), [0.0])
    assert ledger.results()[0].state == TrialState.COMPLETE


def test_points_of_a_grid_are_all_tried(address):
    ledger = _ledger(address, 6, sampler="grid")
    tried = []
    while (claim := ledger.claim()) is not None:
        tried.append((claim.values["rate"], claim.values["kind"]))
    assert sorted(tried) == [(r, k) for r in (0.0, 0.5, 1.0) for k in ("a", "b")]


def test_a_study_of_something_else_is_refused(address):
    _ledger(address)
    with pytest.raises(UsageError, match="searches mine by loss"):
        open_study(address, "s", "mine", [Objective("accuracy", False)])
    with pytest.raises(UsageError, match="searches mine by loss"):
        open_study(address, "s", "mine", [Objective("loss", False)])


def test_other_ranges_than_before_are_refused(address):
    ledger = _ledger(address, 1)
    ledger.release(ledger.claim())
    other = RangedHParams("mine")
    other.set_float("rate", 0.0, 1.0)
    other.set_float("kind", 0.0, 1.0)
    with pytest.raises(UsageError, match="is not the one with which the study was begun"):
        _ledger(address, 1, ranged=other).claim()


def test_half_a_line_of_a_killed_process_does_no_harm(tmp_path):
    address = f"journal:{tmp_path / 'study'}"
    claim = _ledger(address).claim()
    with (tmp_path / "study").open("ab") as file:
        file.write(b'{"op_code": 6, "work')
    after = _ledger(address)
    assert sorted(each.point for each in (claim, after.claim(), after.claim())) == [0, 1, 2]


def _run(pruner: str, parallel: int, points: int, steps: range) -> tuple[float, int]:
    """Returns the best value of a search whose losses are computed, and the steps that it took."""
    ranged = RangedHParams("mine")
    ranged.set_float("rate", 1e-4, 1e-1, scale=ranged.LOG_SCALE)
    ranged.set_discrete("width", [1, 2])
    study = optuna.create_study()
    study.pruner = pruner_of(pruner, steps[0], steps[-1])
    ledger = Ledger(study, ranged, Sampling("grid", ranged, points), points * 2, 10.0)
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


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median"])
def test_pruners_find_what_the_full_grid_finds_in_fewer_steps(pruner):
    steps = range(10, 271, 10)
    best, all_steps = _run("none", 4, 12, steps)
    found, taken = _run(pruner, 4, 12, steps)
    assert found <= 1.02 * best
    assert taken <= (0.4 if pruner == "asha" else 0.9) * all_steps
