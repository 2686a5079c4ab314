"""docs/benchmarks.md shows the stored results."""

from dataclasses import replace

import report
from suite import suites, targets
from suite.results import Ratio, load_processors

from tests.benchmarks.made_up import results, timed

TEMPLATE = """a

{{headline}}

{{chart}}

{{table training_step}}

{{conditions training_step}}
"""


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
