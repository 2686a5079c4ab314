"""The page needs no other files, is well-formed, and draws each tensor's slices."""

import re

import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.layout_report.report import SlicedTensor
from t2tp.layout_report.svg import colour, render_svg
from t2tp.mesh.layout import Layout
from t2tp.program.abstract_program import AbstractProgram
from tests.layout_report import samples
from tests.layout_report.reader import Reader


def sliced(mesh_shape: str, layout: str, *dims: tuple[str, int]) -> SlicedTensor:
    shape = mtf.Shape([mtf.Dimension(*dim) for dim in dims])
    return SlicedTensor("t", shape, tf.float32, Layout(mesh_shape, layout))


def titles(tensor: SlicedTensor) -> list[str]:
    return re.findall("<title>(.*?)</title>", render_svg(tensor))


def test_it_needs_no_other_file_and_no_script(tmp_path):
    t2tp.explain(samples.mlp()).save(tmp_path / "layout.html")
    page = (tmp_path / "layout.html").read_text()
    reader = Reader(page)
    assert reader.count("script") == reader.count("link") == reader.count("img") == 0
    assert "http" not in page and "@import" not in page
    links = [attrs["href"] for tag, attrs in reader.elements if tag == "a"]
    assert {f"#{attrs['id']}" for tag, attrs in reader.elements if tag == "section"} == set(links)


def test_it_says_what_the_text_says():
    report = t2tp.explain(samples.mlp())
    said = " ".join(Reader(report.html()).texts)
    for expected in (
        "w_in",
        "[d_model=6, d_ff=12/model]",
        "slice [6, 6] float32, 144 B per device, 2 copies of each",
        "m: float32, 144 B per device",
        "allreduce over model of a forward matmul with it, 96 B, summed over d_ff",
        "forward: einsum_1, summed over d_ff",
        "saved activations",
    ):
        assert expected in said and expected in str(report)


def test_a_part_says_who_holds_which_indices():
    split = sliced("data:2;model:2", "rows:data;columns:model", ("rows", 4), ("columns", 6))
    assert titles(split) == [
        "processor 0: rows 0 to 1, columns 0 to 2",
        "processor 1: rows 0 to 1, columns 3 to 5",
        "processor 2: rows 2 to 3, columns 0 to 2",
        "processor 3: rows 2 to 3, columns 3 to 5",
    ]
    twice = sliced("data:2;model:2", "columns:model", ("rows", 4), ("columns", 2))
    assert titles(twice) == [
        "processors 0, 2: rows 0 to 3, columns 0",
        "processors 1, 3: rows 0 to 3, columns 1",
    ]
    assert titles(sliced("data:4", "", ("rows", 4))) == ["processors 0-3: rows 0 to 3"]
    assert titles(sliced("data:4", "")) == ["processors 0-3: a number"]


FOLDED = {
    "two split, two folded": (("batch", "data"), ("length", ""), ("heads", "model"), ("d_kv", "")),
    "three split": (("batch", "data"), ("heads", "model"), ("experts", "expert"), ("d_kv", "")),
    "one split, first": (("batch", "data"), ("length", ""), ("d_kv", "")),
    "one split, last": (("batch", ""), ("length", ""), ("d_kv", "data")),
    "none split": (("batch", ""), ("length", ""), ("d_kv", "")),
}


@pytest.mark.parametrize("name", FOLDED)
def test_every_part_is_drawn_once_and_inside(name):
    dims = FOLDED[name]
    rules = ";".join(f"{dim}:{axis}" for dim, axis in dims if axis)
    tensor = sliced("data:2;model:4;expert:3", rules, *((dim, 12) for dim, _ in dims))
    drawn = render_svg(tensor)
    assert len(titles(tensor)) == len(tensor.holders())
    width, height = map(float, re.search(r'width="(\d+)" height="(\d+)"', drawn).groups())
    corners = set()
    for box in re.findall(r"<g transform.*?(?=<g transform|$)", drawn):
        x0, y0 = map(float, re.search(r"translate\(([\d.]+) ([\d.]+)\)", box).groups())
        for x, y, w, h in re.findall(
            r'</title><rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', box
        ):
            right, bottom = x0 + float(x) + float(w), y0 + float(y) + float(h)
            assert right <= width and bottom <= height
            corners.add((right, bottom))
    assert len(corners) == len(tensor.holders())
    for dim, axis in dims:
        assert not axis or f"{dim}=12/{axis}" in drawn or f">{dim} " in drawn


def test_what_all_have_is_grey():
    layouts = [("data:4", "rows:data"), ("data:2;model:2", "rows:data"), ("data:4", ""), ("", "")]
    drawn = [render_svg(sliced(*layout, ("rows", 4))) for layout in layouts]
    assert ["#c3cad3" in each for each in drawn] == [False, False, True, False]


@pytest.mark.parametrize("mesh_shape", ["", "a:1", "a:8", "a:4;b:4", "a:4;b:4;c:4", "a:64"])
def test_processors_have_colours_of_their_own(mesh_shape):
    layout = Layout(mesh_shape)
    assert len({colour(layout, pnum) for pnum in range(layout.size)}) == layout.size


def test_names_are_escaped():
    dim = mtf.Dimension('a<b>&"c', 4)
    program = AbstractProgram(
        lambda mesh, features: {"y": mtf.exp(features["x"])},
        {"x": t2tp.Feature(mtf.Shape([dim]))},
        mesh_shape="data:2",
    )
    page = t2tp.explain(program).html()
    reader = Reader(page)
    assert 'a<b>&"c' not in page
    assert '[a<b>&"c=4]' in "".join(reader.texts)
    labels = [
        attrs["aria-label"] for tag, attrs in reader.elements if tag == "svg" and len(attrs) > 4
    ]
    assert '[a<b>&"c=4]; each part is on 2 of 2' in labels


def test_hundreds_of_variables_on_many_processors_stay_a_small_page():
    report = t2tp.explain(samples.layers(100, "data:8;model:4"))
    assert len(report.data.variables) == 200
    page = report.html()
    assert page.count("<article") < 20 and len(page) < 200_000
    assert "layer_{0..99}/w_in x 100" in page
