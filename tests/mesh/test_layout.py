from __future__ import annotations

import pytest

from t2tp import mtf
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
        ("data:2;model:2", "batch:data;batch:model", "over two axes of the mesh"),
    ],
)
def test_malformed_text_is_refused(mesh_shape, rules, said):
    with pytest.raises(LayoutError, match=said):
        Layout(mesh_shape, rules)


def test_two_dimensions_on_one_axis_are_refused():
    with pytest.raises(LayoutError) as e:
        Layout("data:2", "batch:data;d_ff:data").check("w", SHAPE)
    said = str(e.value)
    assert "'w' [batch=8, d_ff=12]" in said and "'batch' and 'd_ff'" in said
    assert "axis 'data'" in said and "'d_ff:data'" in said


def test_indivisible_size_is_refused_with_sizes_that_work():
    with pytest.raises(LayoutError) as e:
        Layout("model:5", "d_ff:model").check("w", SHAPE)
    said = str(e.value)
    assert "size 5 does not divide dimension 'd_ff' of size 12" in said and "4, 6" in said


def test_typing_errors_are_reported():
    warnings = Layout("data:2;model:2", "bacth:data;d_ff:model").warnings([SHAPE])
    assert any("'bacth:data'" in w and "did you mean 'batch'" in w for w in warnings)
    assert any("'data'" in w and "splits nothing" in w for w in warnings)
    (warning,) = Layout("data:2", "batch:data;d_ff:dta").warnings([SHAPE])
    assert "no axis 'dta'" in warning and "'data'" in warning
