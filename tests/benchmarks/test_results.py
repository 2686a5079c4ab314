"""Ratios, rates and tables are computed from the stored repetitions."""

from dataclasses import replace

import pytest

from tests.benchmarks.made_up import results, timed


def test_a_group_that_is_measured_again_takes_its_place_and_a_new_one_the_last():
    before, after = (results(timed("t2tp", seconds)) for seconds in (1.0, 2.0))
    again = before.with_groups(after.measured, {"turns": 9})
    assert again.measured == after.measured
    assert again.machine == before.machine | {"again": {"1x1": {"turns": 9}}}
    other = [replace(after.measured[0], group="2x2")]
    assert before.with_groups(other, {}).measured == [*before.measured, *other]


def test_the_spread_of_a_ratio_is_half_the_distance_of_its_quartiles():
    run = results(timed("t2tp", 1.0, 2.0, 3.0), timed("other", 2.0, 2.0, 2.0))
    ratio = run.measured[0].ratio(run.measured[0].timed[1])
    assert ratio.value == pytest.approx(1.0)
    assert ratio.spread == pytest.approx(0.25)
