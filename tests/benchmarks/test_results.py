"""Stored results: their ratios, and the pages that show them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import report
from learning import choices, distillation, widths
from suite import suites, targets
from suite.results import Ratio, load_processors

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


def test_the_page_is_what_the_stored_results_give():
    made = report.page(report.TEMPLATE.read_text("utf-8"), load_processors(report.RESULTS))
    assert report.PAGE.read_text("utf-8") == made, "run `python benchmarks/report.py`"


def test_every_stored_case_is_on_the_page():
    template = report.TEMPLATE.read_text("utf-8")
    for case in load_processors(report.RESULTS):
        assert f"{{{{table {case}}}}}" in template


def test_targets_are_beside_what_was_measured():
    aim = targets.Target("ours", "training_step", "1x1", ("slow", "fast"), 0.5)
    run = {"training_step": [results(timed("t2tp", 1.0), timed("slow", 4.0), timed("fast", 1.6))]}
    assert targets.measured(aim, run) == targets.Outcome(Ratio(0.625, 0.0))
    growth = replace(aim, others=("fast",), is_growth=True)
    assert targets.measured(growth, run) == targets.Outcome(Ratio(1.6, 0.0))
    assert targets.measured(aim, {}) is None
    assert "| not measured |" in targets.table({})


def test_every_target_is_a_case_of_the_suite():
    for target in targets.TARGETS:
        groups = suites.FULL[target.case]("design")
        (names,) = [{p.name for p in g.peers} for g in groups if g.name == target.group]
        assert names.issuperset(target.others)


PAGE = Path(__file__).parents[2] / "docs" / "learning.md"


@pytest.mark.parametrize("program", [choices, widths, distillation])
def test_the_page_has_the_table_of_the_stored_results(program):
    stored = json.loads(program.STORED.read_text("utf-8"))
    assert program.table(stored) in PAGE.read_text("utf-8")


def test_a_teacher_makes_the_student_better():
    alone, taught = json.loads(distillation.STORED.read_text("utf-8")).values()
    for seed, figures in alone.items():
        assert taught[seed]["bits_per_byte"] < figures["bits_per_byte"]
        assert taught[seed]["parameters"] == figures["parameters"] <= 865_472 / 4
