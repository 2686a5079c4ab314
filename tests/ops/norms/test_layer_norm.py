"""RMS and layer norm: the composed computation's numbers, also where the normalized dimension is
split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.norms.layer_norm import layer_norm, rms_norm
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


def make_inputs(scale=2.0, mean=0.0):
    random = np.random.default_rng(0)
    return {
        "x": ("batch:8;length:4;d_model:16", mean + scale * random.normal(size=(8, 4, 16))),
        "scale": ("d_model:16", random.uniform(0.5, 1.5, size=16)),
        "bias": ("d_model:16", random.uniform(0.5, 1.5, size=16)),
    }


def our_rms_norm(x, scale, bias):
    return rms_norm(x, scale, x.shape.dims[-1], EPSILON) + bias


def composed_rms_norm(x, scale, bias):
    return x / tf.sqrt(tf.reduce_mean(x**2, axis=-1, keepdims=True) + EPSILON) * scale + bias


def our_layer_norm(x, scale, bias):
    return layer_norm(x, scale, bias, x.shape.dims[-1], EPSILON)


def composed_layer_norm(x, scale, bias):
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(centred**2, axis=-1, keepdims=True)
    return centred / tf.sqrt(variance + EPSILON) * scale + bias


NORMS = [(our_rms_norm, composed_rms_norm), (our_layer_norm, composed_layer_norm)]
both_norms = pytest.mark.parametrize(("ours", "composed"), NORMS, ids=["rms_norm", "layer_norm"])


@both_norms
@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_composed_value_and_gradients(ours, composed, mesh_shape, layout):
    inputs = make_inputs()
    values = with_gradients(ours, inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed, inputs), 2e-6)


@both_norms
def test_bfloat16_is_computed_with_in_float32(ours, composed):
    """What is rounded to bfloat16: dy, the result, and of d_scale each processor's part."""
    inputs = make_inputs()
    layout = "batch:data;d_model:model"
    values = with_gradients(ours, inputs, "data:2;model:2", layout, tf.bfloat16)
    assert_close(values, in_float64(composed, inputs, tf.bfloat16), 3 * 2**-8)


@both_norms
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e4])
def test_tiny_and_large_activations(ours, composed, scale):
    inputs = make_inputs(scale)
    values = with_gradients(ours, inputs, "model:2", "d_model:model")
    assert_close(values, in_float64(composed, inputs), 2e-6)


@pytest.mark.parametrize("layout", ["", "d_model:model"])
def test_a_mean_far_from_zero_costs_layer_norm_no_accuracy(layout):
    """E[x^2] - E[x]^2 in float32 would be off by 1e6 * 2**-24: more than the variance."""
    inputs = make_inputs(scale=0.5, mean=4096.0)
    x = inputs["x"][1].astype(np.float32).astype(np.float64)
    inputs["x"] = (inputs["x"][0], x)
    values = with_gradients(our_layer_norm, inputs, "model:4", layout)
    # Means are sums of a few numbers of 4096: good to 2**-11 of the deviation.
    assert_close(values, in_float64(composed_layer_norm, inputs), 2e-3)


def test_a_split_layer_norm_moves_two_numbers_a_token_each_way():
    features = {name: t2tp.Feature(shape, tf.float32) for name, (shape, _) in make_inputs().items()}

    def step(mesh, given):
        del mesh
        y = our_layer_norm(**given)
        return {"d": mtf.gradients([y], [given["x"]])[0]}

    program = t2tp.Program(step, features, mesh_shape="model:4", layout="d_model:model")
    assert program.collectives() == {
        ("allgather", ("model",)): (1, 2 * 8 * 4 * 4),
        ("allreduce", ("model",)): (1, 2 * 8 * 4 * 4),
    }


@both_norms
def test_a_vector_is_normalized_too(ours, composed):
    inputs = {name: ("d_model:16", make_inputs()["x"][1][0, 0]) for name in ("x", "scale", "bias")}
    values = with_gradients(ours, inputs, "model:2", "d_model:model")
    assert_close(values, in_float64(composed, inputs), 2e-6)


@pytest.mark.parametrize(
    "norm",
    [rms_norm, lambda x, scale, dim: layer_norm(x, scale, scale, dim)],
    ids=["rms_norm", "layer_norm"],
)
def test_a_dimension_that_is_not_the_last_is_refused(norm):
    def step(mesh, given):
        d_model, length = mtf.Dimension("d_model", 4), mtf.Dimension("length", 4)
        x = mtf.zeros(mesh, mtf.Shape([d_model, length]))
        return {"y": norm(x, mtf.zeros(mesh, mtf.Shape([d_model])), d_model)}

    with pytest.raises(ValueError, match="must end in it"):
        t2tp.Program(step)
