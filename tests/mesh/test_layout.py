import re

import pytest

import t2tp
from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.layout_conflicts import check_tensor
from t2tp.mesh.layout_warnings import layout_warnings
from tests.cases import mistakes

SHAPE = mtf.Shape([mtf.Dimension("batch", 8), mtf.Dimension("d_ff", 12)])


def test_slices_tile_the_tensor():
    layout = Layout("data:2;model:3", "batch:data;d_ff:model")
    assert layout.size == 6
    assert layout.coordinates(4) == {"data": 1, "model": 1}
    assert layout.slice_size(SHAPE) == (4, 4)
    begins = [layout.slice_begin(SHAPE, pnum) for pnum in range(6)]
    assert begins == [(0, 0), (0, 4), (0, 8), (4, 0), (4, 4), (4, 8)]


def test_rule_for_an_absent_axis_is_idle():
    assert Layout("data:4", "batch:data;d_ff:model").slice_size(SHAPE) == (2, 12)


@mistakes("meshes")
def test_malformed_text_is_refused(text, says):
    mesh_shape, _, rules = text.partition(" ")
    with pytest.raises(LayoutError, match=says):
        Layout(mesh_shape, rules)


CASES = [
    (HParams(mesh_shape="a:2", layout="batch:a"), "mesh a:2, layout batch:a"),
    ({"mesh_shape": " a:2 ;b:3;", "layout": "batch:a,batch:a"}, "mesh a:2;b:3, layout batch:a"),
    ({"mesh_shape": "a:2", "rate": 0.1}, "mesh a:2, layout (none)"),
    (HParams(d_ff=8), "mesh of one device, layout (none)"),
    (None, "mesh of one device, layout (none)"),
]


@pytest.mark.parametrize(("hparams", "expected"), CASES)
def test_hparams_name_the_layout(hparams, expected):
    assert str(Layout.from_hparams(hparams)) == expected


def test_public_functions_take_two_strings_or_one_layout():
    layout = Layout("a:2", "batch:a")
    assert Layout.from_arguments("", layout) is layout
    assert repr(Layout.from_arguments("a:2", "batch:a")) == repr(layout)
    with pytest.raises(LayoutError, match="mesh_shape='a:4' is given next to Layout.'a:2'"):
        Layout.from_arguments("a:4", layout)


# Mesh, rules, dimensions of a tensor `w`, and the message, in which "..." stands for any text.
REFUSED = [
    (
        *("data:2", "batch:data;d_ff:data", "batch:8;d_ff:12"),
        "'w' [batch=8, d_ff=12]...'batch' and 'd_ff'...axis 'data'...'d_ff:data'...this mesh has"
        " none that would do",
    ),
    (
        *("data:2;expert:2", "batch:data+expert;experts:expert", "batch:8;experts:4"),
        "'batch' and 'experts' over mesh axis 'expert'...the rule 'batch:data+expert' or the rule"
        " 'experts:expert'",
    ),
    # The message must not suggest an axis that does not divide d_kv, splits another dimension, or
    # has size 1.
    (
        *("model:2;expert:4;data:3;one:1", "heads:model;d_kv:model;batch:data"),
        *("batch:6;heads:8;d_kv:6", "give the dimension another axis: 'heads:expert' would do"),
    ),
    (
        *("model:5", "d_ff:model", "batch:8;d_ff:12"),
        "axis 'model' of size 5 does not divide dimension 'd_ff' of size 12...Sizes of the axis"
        " that would work: 3, 4, 6...of the dimension: 10, 15. Or drop the rule 'd_ff:model'",
    ),
    ("model:5", "d_ff:model", "d_ff:3", "of the dimension: 5."),
]


def pattern(said: str) -> str:
    return ".*".join(map(re.escape, said.split("...")))


@pytest.mark.parametrize(("mesh_shape", "rules", "dims", "said"), REFUSED)
def test_dimensions_that_cannot_be_split_together_are_refused(mesh_shape, rules, dims, said):
    with pytest.raises(LayoutError, match=pattern(said)):
        check_tensor(Layout(mesh_shape, rules), "w", mtf.convert_to_shape(dims))


def test_a_dimension_is_split_over_several_axes_the_first_of_which_is_the_major_one():
    batch = mtf.Shape([mtf.Dimension("batch", 24)])
    layout = Layout("data:2;model:4;expert:3", "batch:expert+data")
    assert layout.axis_of("batch") == mtf.Dimension("expert+data", 6)
    assert layout.slice_size(batch) == (4,)
    for pnum in range(24):
        place = layout.coordinates(pnum)
        assert layout.slice_begin(batch, pnum) == (4 * (2 * place["expert"] + place["data"]),)
    assert str(Layout("data:2", "batch:expert+data").axis_of("batch").name) == "data"
    assert layout.rules_text == "batch:expert+data"


def test_groups_of_tokens_at_their_experts_are_split_like_the_batch_without_the_experts_axis():
    layout = Layout("data:2;expert:2", "batch:data+expert;experts:expert")
    assert layout.axis_of("expert_groups").name == "data"
    assert Layout("data:2", "batch:data;experts:data").axis_of("expert_groups") is None
    own = Layout("data:2;expert:2", "batch:data;experts:expert;expert_groups:expert")
    assert own.axis_of("expert_groups").name == "expert"


# A step, its rules and features, and the message.
STEPS = {
    "dimensions that meet in a product": (
        lambda a, b: mtf.einsum([a, b], reduced_dims=[a.shape.dims[0], b.shape.dims[0]]),
        *("batch:data;length:data", {"a": "batch:4;d_model:6", "b": "length:8;d_model:6"}),
        "Operation 'einsum' (Einsum of 'a' [batch=4, d_model=6] and 'b' [length=8, d_model...both"
        " its dimensions 'batch' and 'length' over mesh axis 'data'...'batch:model' or"
        " 'length:model' would do",
    ),
    "a dimension that an operation needs whole": (
        lambda a: mtf.slicewise(lambda x: x, [a], splittable_dims=[a.shape.dims[0]]),
        *("batch:data;d_model:model", {"a": "batch:4;d_model:6"}),
        "(Slicewise of 'a' [batch=4, d_model=6]) cannot be computed with dimension 'd_model' split,"
        " and the layout splits it over mesh axis 'model'...Drop the rule 'd_model:model'",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_an_operation_that_cannot_be_split_is_refused_with_its_tensors(name):
    step_fn, rules, features, said = STEPS[name]
    fed = {name: t2tp.Feature(shape) for name, shape in features.items()}
    with pytest.raises(LayoutError, match=pattern(said)):
        t2tp.Program(
            lambda mesh, features: {"y": step_fn(**features)},
            fed,
            layout=Layout("data:2;model:2", rules),
        )


# Mesh, rules, and the messages of the warnings.
WARNED = [
    ("data:1", "", []),
    ("data:4", "batch:data;d_ff:model", []),  # no warning: one layout may serve several meshes
    ("data:2;expert:1", "batch:data+exprt", ["data only: the mesh has no axis 'exprt'...expert"]),
    (
        *("data:2;model:2", "bacth:data;d_ff:model"),
        ["'bacth:data'...did you mean batch?", "'data'...splits nothing...splits batch"],
    ),
    ("data:2", "batch:data;d_ff:dta", ["no axis 'dta'; did you mean data?"]),
    ("data:2", "batch:data;sequence:data", ["the dimensions are batch, d_ff"]),
    ("data:2", "batch:data;q:y", ["there is neither an axis 'y' nor a dimension 'q'"]),
    (*("data:2", "data:batch"), ["did you mean 'batch:data'?", "'data' of size 2 splits nothing"]),
    (
        *("data:2", "batch:foo"),
        ["has no axis 'foo', which the rule 'batch:foo' names...did you mean 'batch:data'?"],
    ),
    ("data:2", "", ["no rule splits batch, d_ff."]),
]


@pytest.mark.parametrize(("mesh_shape", "rules", "said"), WARNED)
def test_what_has_no_effect_is_warned_of(mesh_shape, rules, said):
    warnings = layout_warnings(Layout(mesh_shape, rules), [SHAPE])
    assert len(warnings) == len(said)
    for warning, expected in zip(warnings, said, strict=True):
        assert re.search(pattern(expected), warning)
    inside = mtf.Shape([*SHAPE.dims, mtf.Dimension("some_operations_own", 2)])
    idle = layout_warnings(Layout(mesh_shape), [SHAPE])
    assert layout_warnings(Layout(mesh_shape), [inside]) == idle  # logged once
