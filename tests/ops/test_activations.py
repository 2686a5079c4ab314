"""The rectifier: TensorFlow's values and gradients, split or not, and once more."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

INPUTS = {"x": ("rows:4;columns:6", np.random.default_rng(0).normal(size=(4, 6)))}


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("a:2;b:2", "rows:a;columns:b")])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_any_layout_gives_tensorflows_values_and_gradients(mesh_shape, layout, dtype):
    values = with_gradients(mtf.relu, INPUTS, mesh_shape, layout, dtype)
    tolerance = 2e-7 if dtype == tf.float32 else 2**-8
    assert_close(values, in_float64(lambda x: tf.nn.relu(x), INPUTS, dtype), tolerance)


def test_the_gradient_has_a_gradient():
    """Of (d/dx relu(x)**2)**2 = 4 relu(x)**2: 8 relu(x)."""

    def step(mesh, given):
        del mesh
        (first,) = mtf.gradients([mtf.reduce_sum(mtf.square(mtf.relu(given["x"])))], [given["x"]])
        return {"d": mtf.gradients([mtf.reduce_sum(mtf.square(first))], [given["x"]])[0]}

    x = np.array([-1.0, 0.0, 0.5, 3.0], np.float32)
    program = t2tp.Program(step, {"x": t2tp.Feature("rows:4")})
    np.testing.assert_allclose(program({"x": x})["d"], 8 * np.maximum(x, 0))
