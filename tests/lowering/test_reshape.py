"""Reshapes between any two layouts, and their collectives."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp import mtf
from t2tp.mesh.layout_conflicts import check_tensor


def reshape(old, new, mesh_shape, layout, summed=0):
    """Reshapes 0, 1, 2, ..., checks value and gradient, and returns the collectives.

    Args:
      summed: size of a dimension `s` that is summed over before the reshape, or 0.
    """
    old, new = mtf.convert_to_shape(old), mtf.convert_to_shape(new)
    fed = mtf.Shape([mtf.Dimension("s", summed), *old.dims]) if summed else old

    def step(mesh, features):
        x = mtf.reduce_sum(features["x"], output_shape=old) if summed else features["x"]
        y = mtf.reshape(x, new)
        (dx,) = mtf.gradients([mtf.square(y)], [x])
        return {"y": y, "dx": dx}

    program = t2tp.Program(step, {"x": t2tp.Feature(fed)}, mesh_shape=mesh_shape, layout=layout)
    x = np.arange(fed.size, dtype=np.float32).reshape(fed.to_integer_list)
    outputs = program({"x": x})
    x = x.sum(0) if summed else x
    np.testing.assert_array_equal(outputs["y"], x.reshape(new.to_integer_list))
    np.testing.assert_array_equal(outputs["dx"], 2 * x)
    return program.collectives()


CASES = [
    ("a:8;c:6", "p:6;q:8", "all:2", "a:all;q:all"),  # NotImplementedError in mesh-tensorflow
    ("a:8;c:6", "p:6;q:8", "all:2", "a:all;p:all"),
    ("a:8", "p:8", "x:2;y:4", "a:y;p:x"),  # wrong numbers in mesh-tensorflow
    ("a:8;b:8", "p:8;q:8", "x:2;y:2", "a:x;b:y;p:y;q:x"),  # the axes are exchanged
    ("a:3;b:4", "p:6;q:2", "x:2", "p:x"),  # the axis does not divide a, which it would split
    ("a:4;b:4;c:4", "p:64", "x:2;y:2;z:2", "a:x;b:y;c:z;p:y"),
    ("p:64", "a:4;b:4;c:4", "x:2;y:2;z:2", "a:x;b:y;c:z;p:y"),
    ("a:4;b:1", "b:1;p:4", "x:2", "a:x;p:x"),
    ("a:8;b:6", "p:8;q:6", "x:2;y:2", "a:x+y;p:y+x"),
    ("a:8;b:4", "p:16;q:2", "x:2;y:2", "a:x+y;p:y;q:x"),
    ("a:12;b:4", "p:6;q:8", "x:2;y:3", "a:x+y;p:y"),
    ("a:24;b:2", "p:6;q:8", "x:2;y:2;z:2", "a:z+x;p:x;q:y+z"),
]


@pytest.mark.parametrize(("old", "new", "mesh_shape", "layout"), CASES)
def test_reshape_gives_the_same_numbers(old, new, mesh_shape, layout):
    reshape(old, new, mesh_shape, layout)


def test_what_stays_in_its_place_is_not_moved():
    assert reshape("a:8;c:6", "a:8;p:2;q:3", "x:2", "a:x") == {}
    assert reshape("a:8;c:6", "p:2;q:4;c:6", "x:2", "a:x;p:x") == {}


def test_a_dimension_that_takes_the_place_of_another_costs_an_alltoall():
    moved = reshape("a:8;c:6", "p:8;q:6", "x:2", "a:x;q:x")
    assert moved == {("alltoall", ("x",)): (2, 2 * 4 * 6 * 4)}


def test_experts_on_an_axis_that_splits_the_batch_too_cost_one_alltoall_over_that_axis():
    """Reshapes from [batch over data and expert] to [groups over data, experts over expert]."""
    moved = reshape(
        "batch:8;slots:6", "groups:8;experts:2;slot:3", "data:2;expert:2",
        "batch:data+expert;groups:data;experts:expert",
    )  # fmt: skip
    assert moved == {("alltoall", ("expert",)): (2, 2 * 2 * 6 * 4)}


def test_axes_that_move_together_do_so_in_one_collective():
    moved = reshape("a:8;c:4", "p:8;q:4", "x:2;y:2", "a:x+y;q:x+y")
    assert moved == {("alltoall", ("x", "y")): (2, 2 * 2 * 4 * 4)}
    moved = reshape("a:8;c:4", "p:8;q:4", "x:2;y:2", "a:x+y")
    # In the backward pass, a processor selects a part of its slice.
    assert moved == {("allgather", ("x", "y")): (1, 2 * 4 * 4)}


def test_a_sum_over_several_axes_is_one_reducescatter():
    moved = reshape("a:8;c:4", "p:8;c:4", "x:2;y:2", "s:x+y;p:y+x", summed=4)
    assert moved == {
        ("reducescatter", ("x", "y")): (1, 8 * 4 * 4),
        ("allgather", ("x", "y")): (1, 2 * 4 * 4),
    }


def test_a_sum_is_reduced_after_the_reshape():
    moved = reshape("a:8;c:6", "p:16;q:3", "x:2;y:2", "s:x;a:y;p:y", summed=4)
    assert moved == {("allreduce", ("x",)): (1, 4 * 6 * 4)}


def test_a_sum_that_its_axis_then_splits_is_a_reducescatter():
    moved = reshape("a:8;c:6", "p:8;c:6", "x:4", "s:x;p:x", summed=4)
    # The gradient is all-gathered.
    assert moved == {
        ("reducescatter", ("x",)): (1, 8 * 6 * 4),
        ("allgather", ("x",)): (1, 2 * 6 * 4),
    }


def test_of_a_sum_over_two_axes_only_one_is_scattered():
    moved = reshape("a:8;c:6", "a:8;q:6", "x:2;y:2", "s:x;a:y;q:x", summed=4)
    assert moved["reducescatter", ("x",)] == (1, 4 * 6 * 4)
    moved = reshape("a:8;c:6", "p:8;c:6", "x:4", "s:x", summed=4)
    assert moved == {("allreduce", ("x",)): (1, 8 * 6 * 4)}


SHAPES = ["a:12;b:6", "a:2;c:6;b:6", "d:8;e:9", "f:72", "g:4;h:3;b:6", "e:9;d:8", "i:6;j:12"]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_any_two_shapes_and_layouts(data):
    old, new = data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from(SHAPES))
    mesh_shape = data.draw(st.sampled_from(["x:2", "x:3", "x:2;y:2", "y:3;x:2", "x:2;y:2;z:2"]))
    axes = [(a.name, a.size) for a in t2tp.Layout(mesh_shape).mesh_shape.dims]
    rules = {}
    for shape in (old, new):
        dims = [(d.name, d.size) for d in mtf.convert_to_shape(shape).dims]
        taken = {a for d, _ in dims for a in rules.get(d, "").split("+")}
        for dim, size in dims:
            joint = [(f"{a}+{b}", n * m) for a, n in axes for b, m in axes if a != b]
            fits = [
                a for a, n in (*axes, *joint) if size % n == 0 and not taken & set(a.split("+"))
            ]
            axis = data.draw(st.sampled_from([None, *fits])) if dim not in rules else None
            if axis:
                rules[dim] = axis
                taken |= set(axis.split("+"))
    if all(_can_be_laid_out(shape, rules, mesh_shape) for shape in (old, new)):
        reshape(old, new, mesh_shape, ";".join(f"{d}:{a}" for d, a in rules.items()))


def _can_be_laid_out(shape, rules, mesh_shape):
    layout = t2tp.Layout(mesh_shape, ";".join(f"{d}:{a}" for d, a in rules.items()))
    try:
        check_tensor(layout, "x", mtf.convert_to_shape(shape))
    except t2tp.LayoutError:
        return False
    return True


def test_dtypes_that_are_not_floats():
    def step(mesh, features):
        return {"y": mtf.reshape(features["x"], mtf.Shape([mtf.Dimension("b", 8)]))}

    program = t2tp.Program(
        step, {"x": t2tp.Feature("a:8", tf.bool)}, mesh_shape="x:2", layout="a:x"
    )
    x = np.arange(8) % 3 == 0
    np.testing.assert_array_equal(program({"x": x})["y"], x)
