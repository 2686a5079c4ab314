"""The page of a plan: self-contained, valid, and with what the plan says."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from t2tp.planner import ClusterFile
from t2tp.planner.charts import Bar, stacked_bars
from t2tp.planner.html import page
from t2tp.planner.scaling import scaled_plans
from t2tp.planner.search import Search, pareto
from t2tp.planner.text import duration, size
from t2tp.planner.work import PURPOSES
from t2tp.trainer.planning import request
from tests.models.small_lm import make_hparams

_OPEN = ("br", "meta")


class Tags(HTMLParser):
    """Fails where a tag is closed that is not the innermost open one."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in _OPEN:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def cluster():
    return ClusterFile.load("a100")


@pytest.fixture(scope="module")
def found(cluster):
    wanted = request("transformer_lm", make_hparams(mesh_shape=""), vocab_size=30)
    return Search(wanted, cluster, 2, rows=8, top=3).run()


def parsed(text):
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    return tags.seen


def test_a_page_refers_to_nothing_outside_of_it(found, cluster):
    plan = found[0].plan
    text = page(plan, found)
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert {"svg", "title", "circle", "rect"} <= {tag for tag, _ in parsed(text)}


def test_it_says_what_the_plan_says(found):
    plan = found[0].plan
    text = page(plan)
    for expected in (plan.cluster, duration(plan.seconds), size(plan.memory_total)):
        assert expected in text
    for purpose, num_bytes in plan.memory.items():
        if num_bytes:
            assert f"{PURPOSES[purpose]}: {size(num_bytes)}" in text
    # Each point of the step is a bar with all purposes; so is each phase of the timeline.
    bars = [attributes for tag, attributes in parsed(text) if tag == "rect"]
    assert len(bars) == len(plan.memory_by_point) * len(PURPOSES) + 2 * 3 * 4 + 1


def test_each_layout_is_a_point_that_says_its_flags(found):
    text = page(found[0].plan, found)
    circles = [attributes["class"] for tag, attributes in parsed(text) if tag == "circle"]
    assert circles.count("chosen") == len(pareto(found))
    assert len(circles) == len(found)
    for each in found:
        assert each.candidate.flags().replace("'", "&#x27;") in text


def test_bars_are_as_long_as_what_they_stand_for():
    bars = [Bar("one", [("a", 1.0), ("b", 3.0)], "4"), Bar("two", [("a", 2.0), ("b", 0.0)], "2")]
    text = stacked_bars(bars, {"a": "red", "b": "blue"}, str, limit=8.0, limit_words="8")
    widths = [float(a["width"]) for tag, a in parsed(text) if tag == "rect"]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 3, 2, 0], abs=0.01)


def test_more_devices_have_more_rows_and_no_more_work(cluster):
    hparams = make_hparams(mesh_shape="data:2", layout="batch:data", batch_size=8)
    plans = scaled_plans(request("transformer_lm", hparams, vocab_size=30), cluster, (0.5, 1, 2))
    assert [plan.devices for plan in plans] == [1, 2, 4]
    assert [plan.tokens / plan.devices for plan in plans] == [plans[0].tokens] * 3
    compute = [sum(c.seconds for c in plan.costs if not c.is_collective) for plan in plans]
    assert compute == pytest.approx([compute[0]] * 3, rel=0.05)
    assert plans[0].seconds < plans[1].seconds


def test_without_a_split_batch_there_is_one_number_of_devices(cluster):
    hparams = make_hparams(mesh_shape="model:2", layout="heads:model", batch_size=8)
    plans = scaled_plans(request("transformer_lm", hparams, vocab_size=30), cluster)
    assert [plan.devices for plan in plans] == [2]
