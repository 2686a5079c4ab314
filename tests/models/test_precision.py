"""Training in bfloat16 and float16 keeps float32 variables and nearly the float32 curve."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.optim import apply_gradients
from tests.models.small_lm import make_batch, training_program
from tests.optim.regression import make_hparams as make_regression_hparams

STEPS = 40


def curve(mesh_shape, **hparams):
    program = training_program(mesh_shape, learning_rate_warmup_steps=4, **hparams)
    losses = [float(program(make_batch(), step=step)["loss"]) for step in range(STEPS)]
    return np.array(losses), program


@pytest.fixture(scope="module")
def in_float32():
    return curve("")[0]


CURVES = [("bfloat16", ""), ("bfloat16", "data:2;model:2"), ("float16", "data:2;model:2")]


@pytest.mark.parametrize(("dtype", "mesh_shape"), CURVES)
def test_the_learning_curve_is_that_of_float32(in_float32, dtype, mesh_shape):
    losses, program = curve(mesh_shape, activation_dtype=dtype)
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_allclose(losses, in_float32, rtol=0.02, atol=0.02)
    assert all(variable.spec.dtype == tf.float32 for variable in program.variables)


def test_gradients_are_summed_over_the_data_axis_in_float32():
    narrow, wide = (
        training_program("data:4", activation_dtype=dtype).collectives()
        for dtype in ("bfloat16", "float32")
    )
    assert narrow["allreduce", ("data",)] == wide["allreduce", ("data",)]


def one_step_of_float16(gradient, steps):
    """Descends along a known gradient; returns the weight and the loss scale."""
    hparams = make_regression_hparams(
        optimizer="sgd", learning_rate_constant=1.0, activation_dtype="float16"
    )

    def step_fn(mesh, features):
        w = mtf.get_variable(
            mesh,
            "w",
            mtf.Shape([mtf.Dimension("a", 4)]),
            dtype=mtf.VariableDType(activation_dtype=tf.float16),
            initializer=tf.zeros_initializer(),
        )
        x = mtf.cast(features["x"], tf.float16)
        loss = mtf.reduce_sum(mtf.cast(w * x, tf.float32))
        return apply_gradients(loss, mesh, hparams, train_steps=10)

    program = t2tp.Program(
        step_fn, {"x": t2tp.Feature("a:4")}, mesh_shape="data:2", layout="a:data"
    )
    for step in range(steps):
        program({"x": np.full(4, gradient, np.float32)}, step=step)
    return program.variables["w"].numpy(), float(program.variables["loss_scale/value"].numpy())


def test_a_gradient_too_small_for_float16_is_not_lost():
    tiny = 1e-5  # below the smallest float16 if multiplied by less than 1/200
    w, scale = one_step_of_float16(tiny, steps=1)
    np.testing.assert_allclose(w, -tiny, rtol=1e-2)
    assert scale == 2.0**15


def test_the_scale_falls_until_the_gradient_fits():
    w, scale = one_step_of_float16(1000.0, steps=12)
    assert scale * 1000.0 < 65504.0 < 2 * scale * 1000.0
    assert np.all(w < 0)
