"""`make bench-check` fails if a ratio rose by more than 15 % and the spread, or a peer vanished."""

import subprocess
import sys
from pathlib import Path

import check
import pytest
from suite.results import Ratio

from tests.benchmarks.made_up import results, timed

PEER = check.Name("step", "1x1", "peer")
ANOTHER = check.Name("step", "1x1", "another")


CASES = [
    (Ratio(0.80, 0.0), False),
    (Ratio(0.50, 0.0), False),
    (Ratio(0.95, 0.0), False),  # 0.8 * (1.15 + 0.05) = 0.96
    (Ratio(0.97, 0.0), True),
    (Ratio(0.97, 0.1), False),
]


@pytest.mark.parametrize(("now", "is_loss"), CASES)
def test_a_loss_is_beyond_15_percent_and_the_spread_of_both(now, is_loss):
    (change,) = check.compare({PEER: Ratio(0.8, 0.05)}, {PEER: now})
    assert change.is_loss is is_loss


def test_a_peer_that_is_gone_from_a_group_that_was_measured_fails():
    baseline = {PEER: Ratio(0.8, 0.05), PEER._replace(group="2x1"): Ratio(0.8, 0.05)}
    gone, elsewhere = check.compare(baseline, {ANOTHER: Ratio(0.5, 0.0)})
    assert gone.is_gone and not elsewhere.is_gone
    assert check.report([gone]) == "GONE          step, 1x1, peer (was 0.80)"
    assert check.report([elsewhere]) == "not measured  step, 2x1, peer (was 0.80)"


def test_only_other_people_s_programs_count():
    run = results(
        timed("t2tp", 1.0),
        timed("t2tp, XLA", 1.0),
        timed("matmul, float32", 1.0, program="matmul"),
        timed("other", 2.0),
    )
    ratios = check.ratios_of({"training_step": run})
    assert ratios == {check.Name("training_step", "1x1", "other"): Ratio(0.5, 0.0)}


def test_the_command(tmp_path):
    def run_check(*arguments: str) -> subprocess.CompletedProcess:
        program = Path(check.__file__)
        command = [sys.executable, program, tmp_path, f"--baseline={tmp_path}/baseline", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    stored = tmp_path / "training_step.json"
    assert run_check().returncode == 2
    results(timed("t2tp", 1.0), timed("other", 1.0)).save(stored)
    assert "no baseline to compare with" in run_check().stderr
    assert run_check("--store").returncode == 0
    assert run_check().returncode == 0
    results(timed("t2tp", 1.2), timed("other", 1.0)).save(stored)
    lost = run_check()
    assert lost.returncode == 1
    assert "LOST          training_step, 1x1, other: 1.00 -> 1.20 (allowed 1.15)" in lost.stdout
    results(timed("t2tp", 1.0), timed("third", 1.0), absent={"other": "gone"}).save(stored)
    assert run_check().returncode == 1
    results(timed("t2tp", 1.0), absent={"other": "gone"}).save(stored)
    assert run_check().returncode == 2
