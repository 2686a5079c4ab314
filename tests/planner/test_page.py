"""The page of a plan needs no other files, is valid, and contains the numbers of the plan."""

import dataclasses
import re
from pathlib import Path

import pytest

from t2tp.planner import ClusterFile
from t2tp.planner.report import plan_report, search_report
from t2tp.planner.search import Search, pareto
from t2tp.report.charts import Bar, Dot, scatter, stacked_bars
from t2tp.report.units import duration, size
from t2tp.step.memory import PURPOSES
from t2tp.trainer.planning import request
from tests.layout_report.reader import Reader
from tests.layout_report.test_browser import CHROMIUM, measured
from tests.models.small_lm import make_hparams


@pytest.fixture(scope="module")
def cluster():
    return ClusterFile.load("a100")


@pytest.fixture(scope="module")
def found(cluster):
    wanted = request("transformer_lm", make_hparams(mesh_shape=""), vocab_size=30)
    return Search(wanted, cluster, 2, rows=8, top=3).run()


def test_a_page_refers_to_nothing_outside_of_it(found, cluster):
    text = search_report(found).html()
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert {"svg", "title", "circle", "i"} <= {tag for tag, _ in Reader(text).elements}


def test_it_says_what_the_plan_says(found):
    plan = found[0].plan
    text = plan_report(plan).html()
    for expected in (plan.cluster, duration(plan.seconds), size(plan.memory_total)):
        assert expected in text
    assert size(1020 * 2**20) == "1,020 MiB" and duration(0.9999) == "1,000 ms"
    for purpose, num_bytes in plan.memory.items():
        if num_bytes:
            assert f"{PURPOSES[purpose]}: {size(num_bytes)}" in text


def test_each_proposal_is_a_point_and_a_row_with_its_flags(found):
    found = [dataclasses.replace(each, flags=f"--a='{i}'") for i, each in enumerate(found)]
    text = search_report(found).html()
    circles = [attributes["class"] for tag, attributes in Reader(text).elements if tag == "circle"]
    assert circles.count("chosen") == len(pareto(found))
    assert len(circles) == len(found)
    for each in found:
        assert text.count(each.flags.replace("'", "&#x27;")) == 2


def test_bars_are_as_long_as_what_they_stand_for():
    bars = [Bar("one", [("a", 1.0), ("b", 3.0)], "4"), Bar("two", [("a", 2.0), ("b", 0.0)], "2")]
    text = stacked_bars(bars, {"a": "red", "b": "blue"}, str, limit=8.0)
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", text)]
    assert widths == pytest.approx([12.5, 37.5, 25.0])
    assert re.findall(r"left:([\d.]+)%", text) == ["100.00"] * 2


@pytest.mark.parametrize(("low", "high"), [(1e-3, 2e-3), (7.0, 1e6), (990.0, 1200.0)])
def test_axes_use_the_space(low, high):
    dots = [Dot(low, low, ""), Dot(high, high, "")]
    text = scatter(dots, ("x", "y"), lambda x: f"{x:.4g}", duration)
    circles = [attrs for tag, attrs in Reader(text).elements if tag == "circle"]
    for name, space in (("cx", 1010), ("cy", 244)):
        places = [float(attrs[name]) for attrs in circles]
        assert max(places) - min(places) > 0.8 * space
    assert len(re.findall(r'text-anchor="(?:middle|end)">[^<]+<', text)) > 4


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
@pytest.mark.parametrize("width", [1280, 700])
def test_no_text_of_a_page_is_cut_or_covers_another(found, cluster, tmp_path, width):
    """Tests the width of a window and the width of a printed page."""
    script = Path(__file__).with_name("measure.js")
    said = measured(tmp_path, search_report(found).html(), script, width)
    assert said == {"cut": [], "covered": [], "width": width}
