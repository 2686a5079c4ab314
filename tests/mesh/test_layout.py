from __future__ import annotations

import pytest

import t2tp
from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout, LayoutError

SHAPE = mtf.Shape([mtf.Dimension("batch", 8), mtf.Dimension("d_ff", 12)])


def test_slices_tile_the_tensor():
    layout = Layout("data:2;model:3", "batch:data;d_ff:model")
    assert layout.size == 6
    assert layout.slice_size(SHAPE) == (4, 4)
    begins = [layout.slice_begin(SHAPE, pnum) for pnum in range(6)]
    assert begins == [(0, 0), (0, 4), (0, 8), (4, 0), (4, 4), (4, 8)]


def test_pnum_counts_the_last_axis_fastest():
    assert Layout("a:2;b:3").coordinates(4) == {"a": 1, "b": 1}


def test_rule_for_an_absent_axis_is_idle():
    layout = Layout("data:4", "batch:data;d_ff:model")
    assert layout.slice_size(SHAPE) == (2, 12)
    assert layout.warnings([SHAPE]) == []


@pytest.mark.parametrize(
    ("mesh_shape", "rules", "said"),
    [
        ("data", "", "'data' is not of the form 'data:2'"),
        ("data:x", "", "must be a positive integer, not 'x'"),
        ("data:0", "", "must be a positive integer, not '0'"),
        ("data:2;data:4", "", "names axis 'data' twice"),
        ("data:2", "batch", "'batch' is not of the form 'batch:data'"),
        ("data:2;model:2", "batch:data;batch:model", "write one rule: .batch:data.model."),
        ("data:2;model:2", "batch:data+data", "must name different axes"),
        ("data:2;model:2", "batch:data+", "must name different axes"),
    ],
)
def test_malformed_text_is_refused(mesh_shape, rules, said):
    with pytest.raises(LayoutError, match=said):
        Layout(mesh_shape, rules)


@pytest.mark.parametrize(
    ("hparams", "expected"),
    [
        (HParams(mesh_shape="a:2", layout="batch:a"), "mesh a:2, layout batch:a"),
        ({"mesh_shape": " a:2 ;b:3;", "layout": "batch:a,batch:a"}, "mesh a:2;b:3, layout batch:a"),
        ({"mesh_shape": "a:2", "rate": 0.1}, "mesh a:2, layout (none)"),
        (HParams(d_ff=8), "mesh of one device, layout (none)"),
        (None, "mesh of one device, layout (none)"),
    ],
)
def test_hparams_name_the_layout(hparams, expected):
    assert str(Layout.from_hparams(hparams)) == expected


def test_public_functions_take_two_strings_or_one_layout():
    layout = Layout("a:2", "batch:a")
    assert Layout.from_arguments("", layout) is layout
    assert repr(Layout.from_arguments("a:2", "batch:a")) == repr(layout)
    with pytest.raises(LayoutError, match="mesh_shape='a:4' is given next to Layout.'a:2'"):
        Layout.from_arguments("a:4", layout)


def refused(layout: Layout, *dims: tuple[str, int]) -> str:
    """What is said of a tensor `w` of these dimensions."""
    with pytest.raises(LayoutError) as error:
        layout.check("w", mtf.Shape([mtf.Dimension(*dim) for dim in dims]))
    return str(error.value)


def test_two_dimensions_on_one_axis_are_refused():
    said = refused(Layout("data:2", "batch:data;d_ff:data"), ("batch", 8), ("d_ff", 12))
    assert "'w' [batch=8, d_ff=12]" in said and "'batch' and 'd_ff'" in said
    assert "axis 'data'" in said and "'d_ff:data'" in said
    assert "this mesh has none that would do" in said


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


def test_two_dimensions_that_share_one_of_several_axes_are_refused():
    layout = Layout("data:2;expert:2", "batch:data+expert;experts:expert")
    said = refused(layout, ("batch", 8), ("experts", 4))
    assert "'batch' and 'experts' over mesh axis 'expert'" in said
    assert "the rule 'batch:data+expert' or the rule 'experts:expert'" in said


def test_groups_of_tokens_at_their_experts_are_split_like_the_batch_without_the_experts_axis():
    layout = Layout("data:2;expert:2", "batch:data+expert;experts:expert")
    assert layout.axis_of("expert_groups").name == "data"
    assert Layout("data:2", "batch:data;experts:data").axis_of("expert_groups") is None
    own = Layout("data:2;expert:2", "batch:data;experts:expert;expert_groups:expert")
    assert own.axis_of("expert_groups").name == "expert"


def test_an_axis_that_is_missing_from_several_is_reported():
    dims = [mtf.Shape([mtf.Dimension("batch", 8)])]
    (said,) = Layout("data:2;expert:1", "batch:data+exprt").warnings(dims)
    assert "splits over data only: the mesh has no axis 'exprt'" in said and "expert" in said


def test_rules_that_would_do_are_named():
    layout = Layout("model:2;expert:4;data:3;one:1", "heads:model;d_kv:model;batch:data")
    said = refused(layout, ("batch", 6), ("heads", 8), ("d_kv", 6))
    # Not d_kv:expert, which does not divide, nor the axes that split another dimension or nothing.
    assert said.endswith("or give the dimension another axis: 'heads:expert' would do here.")


def test_indivisible_size_is_refused_with_sizes_that_work():
    said = refused(Layout("model:5", "d_ff:model"), ("batch", 8), ("d_ff", 12))
    assert "axis 'model' of size 5 does not divide dimension 'd_ff' of size 12" in said
    assert (
        "Sizes of the axis that would work: 3, 4, 6" in said and "of the dimension: 10, 15." in said
    )
    assert "drop the rule 'd_ff:model'" in said
    assert "of the dimension: 5." in refused(Layout("model:5", "d_ff:model"), ("d_ff", 3))


def refused_program(step_fn, layout: str, **features: str) -> str:
    """What is said of a step that is fed tensors of these shapes."""
    fed = {name: t2tp.Feature(shape) for name, shape in features.items()}
    with pytest.raises(LayoutError) as error:
        t2tp.Program(
            lambda mesh, features: {"y": step_fn(**features)},
            fed,
            mesh_shape="data:2;model:2",
            layout=layout,
        )
    return str(error.value)


def test_dimensions_that_meet_in_a_product_are_refused_with_its_tensors():
    said = refused_program(
        lambda a, b: mtf.einsum([a, b], reduced_dims=[a.shape.dims[0], b.shape.dims[0]]),
        "batch:data;length:data",
        a="batch:4;d_model:6",
        b="length:8;d_model:6",
    )
    operation = "Operation 'einsum' (Einsum of 'a' [batch=4, d_model=6] and 'b' [length=8, d_model"
    assert said.startswith(operation)
    assert "both its dimensions 'batch' and 'length' over mesh axis 'data'" in said
    assert "'batch:model' or 'length:model' would do" in said


def test_an_operation_that_cannot_be_split_is_refused_with_its_tensors():
    said = refused_program(
        lambda a: mtf.slicewise(lambda x: x, [a], splittable_dims=[a.shape.dims[0]]),
        "batch:data;d_model:model",
        a="batch:4;d_model:6",
    )
    assert "(Slicewise of 'a' [batch=4, d_model=6]) cannot be computed with dimension" in said
    assert "'d_model' split, and the layout splits it over mesh axis 'model'" in said
    assert "Drop the rule 'd_model:model'" in said


def test_typing_errors_are_reported():
    warnings = Layout("data:2;model:2", "bacth:data;d_ff:model").warnings([SHAPE])
    assert any("'bacth:data'" in w and "did you mean batch?" in w for w in warnings)
    assert any("'data'" in w and "splits nothing" in w and "splits batch" in w for w in warnings)
    (warning,) = Layout("data:2", "batch:data;d_ff:dta").warnings([SHAPE])
    assert "no axis 'dta'; did you mean data?" in warning
    (warning,) = Layout("data:2", "batch:data;sequence:data").warnings([SHAPE])
    assert "no dimension" not in warning and "the dimensions are batch, d_ff" in warning
    (warning,) = Layout("data:2", "batch:data;q:y").warnings([SHAPE])
    assert warning.endswith("there is neither an axis 'y' nor a dimension 'q'")


def test_a_rule_the_wrong_way_round_is_reported():
    rule, axis = Layout("data:2", "data:batch").warnings([SHAPE])
    assert "did you mean 'batch:data'?" in rule and "'data' of size 2 splits nothing" in axis


def test_an_axis_of_one_is_not_reported():
    assert Layout("data:1", "").warnings([SHAPE]) == []


def test_a_rule_with_an_axis_that_the_mesh_lacks_is_named_where_an_axis_is_idle():
    (warning,) = Layout("data:2", "batch:foo").warnings([SHAPE])
    assert "the mesh has no axis 'foo', which the rule 'batch:foo' names" in warning
    assert warning.endswith("did you mean 'batch:data'?")
    inside = mtf.Shape([*SHAPE.dims, mtf.Dimension("some_operations_own", 2)])
    (warning,) = Layout("data:2", "").warnings([inside])
    assert "no rule splits batch, d_ff." in warning
    assert Layout("data:2", "").warnings([SHAPE]) == [warning]  # So that it is said once.
    # One layout serves many meshes.
    assert Layout("data:2", "batch:data;d_ff:foo").warnings([SHAPE]) == []
