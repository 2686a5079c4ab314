"""Ratios, rates and tables follow from the repetitions that are kept."""

from dataclasses import replace

import pytest
from suite.results import Results

from tests.benchmarks.made_up import results, timed


def test_a_group_that_is_measured_again_takes_its_place_and_a_new_one_the_last():
    before, after = (results(timed("t2tp", seconds)) for seconds in (1.0, 2.0))
    again = before.with_groups(after.measured, {"turns": 9})
    assert again.measured == after.measured
    assert again.machine == before.machine | {"again": {"1x1": {"turns": 9}}}
    other = [replace(after.measured[0], group="2x2")]
    assert before.with_groups(other, {}).measured == [*before.measured, *other]


def test_a_ratio_compares_what_ran_one_after_the_other():
    # The machine was twice as slow in the second turn, for both.
    run = results(timed("t2tp", 1.0, 2.0, 1.0), timed("other", 2.0, 4.0, 2.0))
    ratio = run.measured[0].ratio(run.measured[0].timed[1])
    assert (ratio.value, ratio.spread) == (0.5, 0.0)
    assert run.measured[0].timed[1].spread > 0


def test_the_spread_of_a_ratio_is_half_the_distance_of_its_quartiles():
    run = results(timed("t2tp", 1.0, 2.0, 3.0), timed("other", 2.0, 2.0, 2.0))
    ratio = run.measured[0].ratio(run.measured[0].timed[1])
    assert ratio.value == pytest.approx(1.0)
    assert ratio.spread == pytest.approx(0.25)


def test_what_is_saved_can_be_loaded(tmp_path):
    run = results(timed("t2tp", 1.0, losses=[2.0]), timed("other", 2.0), absent={"x": "why"})
    run.save(tmp_path / "training_step.json")
    assert Results.load(tmp_path / "training_step.json") == run
    assert [path.name for path in tmp_path.iterdir()] == ["training_step.json"]
