"""Pooling: TensorFlow's values and gradients, however images are split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.mesh.layout import LayoutError
from t2tp.ops.conv.pooling import pool
from tests.cases import in_turn
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("data:2;model:2", "batch:data;channels:model"),
    ("rows:4", "height:rows"),
    ("rows:2;columns:2", "height:rows;width:columns"),
    ("columns:4;rows:2", "height:rows;width:columns"),
    ("data:2;columns:2", "batch:data;width:columns"),
]
WINDOWS = [(2, 2), (3, 2), (3, 1), (2, 1)]
KINDS = [("max", "MAX"), ("mean", "AVG")]


def make_inputs(height=16, width=16):
    # Below zero too: what is beyond the edge must not be the largest.
    x = np.random.default_rng(0).normal(size=(2, height, width, 4)) - 3.0
    return {"x": (f"batch:2;height:{height};width:{width};channels:4", x)}


def tensorflows(kind, size, stride):
    return lambda x: tf.nn.pool(x, [size, size], kind, [stride, stride], "SAME")


@pytest.mark.parametrize(
    ("mesh_shape", "layout", "size", "stride", "kind", "name"),
    in_turn(LAYOUTS, in_turn(WINDOWS, KINDS, times=2), times=3),
)
def test_any_layout_gives_tensorflows_values_and_gradients(
    mesh_shape, layout, size, stride, kind, name
):
    inputs = make_inputs()
    values = with_gradients(lambda x: pool(x, kind, size, stride), inputs, mesh_shape, layout)
    assert_close(values, in_float64(tensorflows(name, size, stride), inputs), 2e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_float64_is_computed_in_float64(mesh_shape, layout):
    def step(mesh, given):
        del mesh
        y = pool(given["x"], "mean", 3, 2)
        return {"y": y, "dx": mtf.gradients([y], [given["x"]])[0]}

    shape, array = make_inputs()["x"]
    feature = t2tp.Feature(shape, tf.float64)
    program = t2tp.Program(step, {"x": feature}, mesh_shape=mesh_shape, layout=layout)
    outputs = program({"x": array})
    x = tf.constant(array)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tensorflows("AVG", 3, 2)(x)
    np.testing.assert_allclose(outputs["y"], y, rtol=1e-14)
    np.testing.assert_allclose(outputs["dx"], tape.gradient(y, x), rtol=1e-14)


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_sizes_that_the_stride_does_not_divide(kind, name):
    inputs = make_inputs(7, 5)
    values = with_gradients(lambda x: pool(x, kind, 3, 2), inputs)
    assert_close(values, in_float64(tensorflows(name, 3, 2), inputs), 2e-6)


@pytest.mark.parametrize("layout", ["", "height:rows"])
def test_of_equal_elements_the_first_has_the_gradient(layout):
    """Also where they are in two slices."""
    inputs = {"x": ("batch:1;height:8;width:8;channels:1", np.zeros([1, 8, 8, 1]))}
    values = with_gradients(lambda x: pool(x, "max", 3, 2), inputs, "rows:4", layout)
    wanted = in_float64(tensorflows("MAX", 3, 2), inputs)
    np.testing.assert_allclose(values["d_x"], wanted["d_x"], atol=1e-6)


def test_slices_that_the_stride_does_not_divide_are_refused():
    features = {"x": t2tp.Feature("batch:2;height:10;width:8;channels:4")}
    with pytest.raises(LayoutError, match="Pooling 'pool_max' along 'height' goes by 3"):
        t2tp.Program(
            lambda mesh, given: {"y": pool(given["x"], "max", 3, 3)},
            features,
            mesh_shape="rows:2",
            layout="height:rows",
        )


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [("sum", 2, "kind must be 'max' or 'mean', not 'sum'"), ("max", 0, "must be at least 1")],
)
def test_what_cannot_be_is_refused(kind, size, message):
    with pytest.raises(ValueError, match=message):
        with_gradients(lambda x: pool(x, kind, size, 1), make_inputs())
