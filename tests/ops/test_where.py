"""where: what is not chosen does not show, in the value or in the gradient."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [("", ""), ("x:2", "a:x"), ("x:2;y:2", "a:x;b:y"), ("x:4", "b:x")]


def make_inputs():
    random = np.random.default_rng(0)
    return {
        "a": ("a:4;b:8", random.normal(size=(4, 8))),
        "b": ("b:8", random.normal(size=8)),
        "c": ("a:4", np.array([0, 1, 1, 0])),
    }


def ours(a, b, c):
    return mtf.where(mtf.equal(c, 1), a, b, output_shape=a.shape)


def composed(a, b, c):
    return tf.where(tf.equal(c, 1)[:, None], a, b)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_value_and_the_gradients(mesh_shape, layout):
    inputs = make_inputs()
    values = with_gradients(ours, inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed, inputs), 1e-6)


def test_what_is_not_chosen_does_not_show():
    inputs = make_inputs()
    inputs["a"][1][0] = np.nan
    inputs["b"][1][3] = np.inf
    values = with_gradients(ours, inputs, "x:2", "a:x")
    assert np.isfinite(values["y"][0]).sum() == 7  # b, with its infinity
    assert np.isfinite(values["y"][1:3]).all()
    for name in ("d_a", "d_b"):
        assert np.isfinite(values[name]).all(), name
    assert not values["d_a"][0].any()


def test_an_infinite_gradient_does_not_reach_the_branch_that_is_not_chosen():
    def step(mesh, features):
        del mesh
        x = features["x"]
        y = mtf.where(mtf.greater(x, 0.0), x, 1.0)
        (dx,) = mtf.gradients([y], [x], [mtf.reciprocal(x * 0.0)])
        return {"dx": dx}

    program = t2tp.Program(step, {"x": t2tp.Feature("a:2")})
    np.testing.assert_array_equal(program({"x": np.array([-1.0, 1.0])})["dx"], [0, np.inf])


def test_what_is_not_boolean_or_of_two_dtypes_is_refused():
    def condition_is_a_number(a, b, c):
        return mtf.where(c, a, b)

    def two_dtypes(a, b, c):
        return mtf.where(mtf.equal(c, 1), a, mtf.cast(b, tf.int32))

    def shape_lacks_a_dimension(a, b, c):
        return mtf.where(mtf.equal(c, 1), a, b, output_shape=b.shape)

    for wrong, said in [
        (condition_is_a_number, "takes booleans"),
        (two_dtypes, "float32 and int32"),
        (shape_lacks_a_dimension, "lacks"),
    ]:
        with pytest.raises(ValueError, match=said):
            with_gradients(wrong, make_inputs())


def test_a_dimension_of_two_sizes_is_refused():
    def step(mesh, features):
        a, b = features["a"], features["b"]
        return {"y": mtf.where(mtf.greater(a, 0.0), a, b)}

    with pytest.raises(ValueError, match="where: dimension 'd' has size 4 in"):
        t2tp.Program(step, {"a": t2tp.Feature("d:4"), "b": t2tp.Feature("d:6")})
