"""Cumulative sums, also along a dimension that is split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [("", ""), ("x:2", "a:x"), ("x:4", "b:x"), ("x:2;y:4", "a:x;b:y"), ("x:2", "b:x")]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("exclusive", [False, True])
def test_any_layout_gives_the_sums_and_the_gradient(mesh_shape, layout, exclusive):
    inputs = {"x": ("a:4;b:8;c:3", np.random.default_rng(0).normal(size=(4, 8, 3)))}
    values = with_gradients(
        lambda x: mtf.cumsum(x, x.shape.dims[1], exclusive), inputs, mesh_shape, layout
    )
    wanted = in_float64(lambda x: tf.cumsum(x, axis=1, exclusive=exclusive), inputs)
    assert_close(values, wanted, 1e-6)


def test_each_slice_says_only_its_total():
    def step(mesh, features):
        del mesh
        return {"y": mtf.cumsum(features["x"], features["x"].shape.dims[0])}

    program = t2tp.Program(step, {"x": t2tp.Feature("b:8;c:3")}, mesh_shape="x:4", layout="b:x")
    assert program.collectives() == {("allgather", ("x",)): (1, 3 * 4)}


def test_bfloat16_is_summed_in_float32():
    inputs = {"x": ("b:1024", np.ones(1024))}
    values = with_gradients(
        lambda x: mtf.cumsum(x, x.shape.dims[0]), inputs, "x:2", "b:x", tf.bfloat16
    )
    assert values["y"][-1] == 1024


def test_a_dimension_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="has no dimension"):
        with_gradients(lambda x: mtf.cumsum(x, mtf.Dimension("z", 3)), {"x": ("b:3", np.ones(3))})
