"""Reshapes between any two layouts, and their collectives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp import mtf
from tests.lowering import oracle
from tests.mesh import layouts


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


# Old and new shape, mesh, layout, size of the summed dimension `s` (0: none), and collectives.
MOVED = {
    "what stays in its place": ("a:8;c:6", "a:8;p:2;q:3", "x:2", "a:x", 0, {}),
    "the first dimension in parts": ("a:8;c:6", "p:2;q:4;c:6", "x:2", "a:x;p:x", 0, {}),
    "a dimension in the place of another": (
        *("a:8;c:6", "p:8;q:6", "x:2", "a:x;q:x", 0),
        {("alltoall", ("x",)): (2, 2 * 4 * 6 * 4)},
    ),
    # From [batch over data and expert] to [groups over data, experts over expert].
    "experts on an axis that splits the batch too": (
        *("batch:8;slots:6", "groups:8;experts:2;slot:3", "data:2;expert:2"),
        *("batch:data+expert;groups:data;experts:expert", 0),
        {("alltoall", ("expert",)): (2, 2 * 2 * 6 * 4)},
    ),
    "axes that move together": (
        *("a:8;c:4", "p:8;q:4", "x:2;y:2", "a:x+y;q:x+y", 0),
        {("alltoall", ("x", "y")): (2, 2 * 2 * 4 * 4)},
    ),
    # In the backward pass, a processor selects a part of its slice.
    "axes that leave together": (
        *("a:8;c:4", "p:8;q:4", "x:2;y:2", "a:x+y", 0),
        {("allgather", ("x", "y")): (1, 2 * 4 * 4)},
    ),
    # The gradients of sums that are scattered are gathered.
    "a sum over several axes": (
        *("a:8;c:4", "p:8;c:4", "x:2;y:2", "s:x+y;p:y+x", 4),
        {("reducescatter", ("x", "y")): (1, 8 * 4 * 4), ("allgather", ("x", "y")): (1, 2 * 4 * 4)},
    ),
    "a sum that is reduced after the reshape": (
        *("a:8;c:6", "p:16;q:3", "x:2;y:2", "s:x;a:y;p:y", 4),
        {("allreduce", ("x",)): (1, 4 * 6 * 4)},
    ),
    "a sum that its axis then splits": (
        *("a:8;c:6", "p:8;c:6", "x:4", "s:x;p:x", 4),
        {("reducescatter", ("x",)): (1, 8 * 6 * 4), ("allgather", ("x",)): (1, 2 * 6 * 4)},
    ),
    "a sum that its axis does not split": (
        *("a:8;c:6", "p:8;c:6", "x:4", "s:x", 4),
        {("allreduce", ("x",)): (1, 8 * 6 * 4)},
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_reshape_moves_no_more_than_it_must(name):
    *arguments, wanted = MOVED[name]
    assert reshape(*arguments) == wanted


def test_of_a_sum_over_two_axes_only_one_is_scattered():
    moved = reshape("a:8;c:6", "a:8;q:6", "x:2;y:2", "s:x;a:y;q:x", summed=4)
    assert moved["reducescatter", ("x",)] == (1, 4 * 6 * 4)


SHAPES = ["a:12;b:6", "a:2;c:6;b:6", "d:8;e:9", "f:72", "g:4;h:3;b:6", "e:9;d:8", "i:6;j:12"]
MESHES = ["x:2", "x:3", "x:2;y:2", "y:3;x:2", "x:2;y:2;z:2"]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.sampled_from(MESHES), st.data())
def test_any_two_shapes_and_layouts(old, new, mesh_shape, data):
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    mtf.reshape(mtf.zeros(mesh, mtf.convert_to_shape(old)), mtf.convert_to_shape(new))
    reshape(old, new, mesh_shape, layouts.drawn(mesh.graph, mesh_shape, data))


def test_dtypes_that_are_not_floats():
    x = np.arange(8) % 3 == 0
    values = oracle.run_ours(
        lambda mesh, given: {"y": mtf.reshape(given["x"], mtf.convert_to_shape("b:8"))},
        {"x": (mtf.convert_to_shape("a:8"), x)},
        *("x:2", "a:x"),
    )
    np.testing.assert_array_equal(values["y"], x)
