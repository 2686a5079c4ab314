"""RMS norm: the composed computation's numbers, also where the normalized dimension is split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.normalization import rms_norm
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("data:4", "batch:data"),
    ("model:4", "d_model:model"),
    ("data:2;model:2", "batch:data;d_model:model"),
    ("data:2;model:4", "batch:data;d_model:model"),
    ("data:2;model:2", "batch:data;length:model"),
]
EPSILON = 0.1  # Large, so that a wrong one is seen.


def make_inputs(scale=2.0):
    random = np.random.default_rng(0)
    return {
        "x": ("batch:8;length:4;d_model:16", scale * random.normal(size=(8, 4, 16))),
        "scale": ("d_model:16", random.uniform(0.5, 1.5, size=16)),
    }


def ours(x, scale):
    return rms_norm(x, scale, x.shape.dims[-1], EPSILON)


def composed(x, scale):
    return x / tf.sqrt(tf.reduce_mean(x**2, axis=-1, keepdims=True) + EPSILON) * scale


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_composed_value_and_gradients(mesh_shape, layout):
    inputs = make_inputs()
    values = with_gradients(ours, inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed, inputs), 2e-6)


def test_bfloat16_is_computed_with_in_float32():
    """What is rounded to bfloat16: dy, the result, and of d_scale each processor's part."""
    inputs = make_inputs()
    layout = "batch:data;d_model:model"
    values = with_gradients(ours, inputs, "data:2;model:2", layout, tf.bfloat16)
    assert_close(values, in_float64(composed, inputs, tf.bfloat16), 3 * 2**-8)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e4])
def test_tiny_and_large_activations(scale):
    inputs = make_inputs(scale)
    values = with_gradients(ours, inputs, "model:2", "d_model:model")
    assert_close(values, in_float64(composed, inputs), 2e-6)


def test_a_vector_is_normalized_too():
    inputs = {name: ("d_model:16", make_inputs()["scale"][1]) for name in ("x", "scale")}
    values = with_gradients(ours, inputs, "model:2", "d_model:model")
    assert_close(values, in_float64(composed, inputs), 2e-6)


def test_a_dimension_that_is_not_the_last_is_refused():
    def step(mesh, given):
        d_model, length = mtf.Dimension("d_model", 4), mtf.Dimension("length", 4)
        x = mtf.zeros(mesh, mtf.Shape([d_model, length]))
        return {"y": rms_norm(x, mtf.zeros(mesh, mtf.Shape([d_model])), d_model)}

    with pytest.raises(ValueError, match="must end in it"):
        t2tp.Program(step)
