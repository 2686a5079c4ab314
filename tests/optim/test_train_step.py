"""From gradients to updates: clipping by the exact global norm, and unused variables."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.optim import apply_gradients
from t2tp.optim.clipping import global_norm
from tests.optim.regression import assert_close, make_hparams

A, B, C = (mtf.Dimension(n, s) for n, s in (("a", 8), ("b", 12), ("c", 4)))
# Split over one axis, over two axes in either order, and not split.
SHAPES = {"w": [A, B], "turned": [B, A], "vector": [B], "whole": [C], "scalar": []}
MESHES = ["", "data:4", "model:4", "data:2;model:2", "data:2;model:4", "model:2;data:2"]
LAYOUT = "a:data;b:model"


def make_gradients():
    random = np.random.default_rng(0)
    return {
        name: random.normal(size=mtf.Shape(dims).to_integer_list).astype(np.float32)
        for name, dims in SHAPES.items()
    }


def true_norm():
    return np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in make_gradients().values()))


def run(mesh_shape, start=0.0, rate=1.0, **values):
    """Makes a step of gradient descent with known gradients; returns its outputs and updates."""
    hparams = make_hparams(optimizer="sgd", learning_rate_constant=rate, **values)
    initializer = tf.constant_initializer(start)

    def step(mesh, features):
        loss = mtf.constant(mesh, 0.0, dtype=tf.float32)
        for name, gradient in make_gradients().items():
            shape = mtf.Shape(SHAPES[name])
            variable = mtf.get_variable(mesh, name, shape, initializer=initializer)
            loss += mtf.reduce_sum(variable * mtf.import_tf_tensor(mesh, gradient, shape=shape))
        return apply_gradients(loss, mesh, hparams, train_steps=1)

    program = t2tp.Program(step, mesh_shape=mesh_shape, layout=LAYOUT)
    shown = program()
    return shown, {name: start - program.variables[name].numpy() for name in SHAPES}


LIMITS = [*((2.5, mesh) for mesh in MESHES), *itertools.product((0.0, 100.0), MESHES[::3])]


@pytest.mark.parametrize(("limit", "mesh_shape"), LIMITS)
def test_gradients_are_clipped_by_their_exact_global_norm(limit, mesh_shape):
    """The norm is above 10 and below 100. Without a limit, or below it, gradients do not change."""
    shown, updates = run(mesh_shape, clip_grad_norm=limit)
    np.testing.assert_allclose(shown["gradient_norm"], true_norm(), rtol=1e-6)
    factor, rtol = (2.5 / true_norm(), 2e-6) if limit == 2.5 else (1.0, 0.0)
    assert_close(updates, {name: x * factor for name, x in make_gradients().items()}, rtol)


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_the_norms_of_the_variables_and_of_what_a_step_changes(mesh_shape):
    shown, _ = run(mesh_shape, start=1.0, rate=0.5, show_movement=True)
    size = sum(gradient.size for gradient in make_gradients().values())
    np.testing.assert_allclose(shown["parameter_norm"], size**0.5, rtol=1e-6)
    np.testing.assert_allclose(shown["update_norm"], 0.5 * true_norm(), rtol=1e-5)


def test_the_norm_of_many_tensors_costs_one_reduction_for_each_set_of_axes():
    def step(mesh, features):
        tensors = [
            mtf.ones(mesh, mtf.Shape(dims), dtype)
            for dims in SHAPES.values()
            for dtype in (tf.float32, tf.bfloat16)
        ]
        return {"norm": global_norm(tensors)}

    program = t2tp.Program(step, mesh_shape="data:2;model:2", layout=LAYOUT)
    assert program()["norm"] == pytest.approx(np.sqrt(2 * (96 + 96 + 12 + 4 + 1)), rel=1e-6)
    assert program.collectives() == {
        ("allreduce", ("data", "model")): (1, 4),
        ("allreduce", ("model",)): (1, 4),
    }


REFUSED = [
    ("used idle", {}, "loss does not depend on the variables idle"),
    ("used", {"optimizer": "adm"}, "unknown optimizer 'adm'.*adam"),
]


@pytest.mark.parametrize(("names", "changes", "message"), REFUSED)
def test_what_cannot_be_trained_is_refused(names, changes, message):
    def step(mesh, features):
        used, *_ = (mtf.get_variable(mesh, name, mtf.Shape([A])) for name in names.split())
        return apply_gradients(mtf.reduce_sum(used), mesh, make_hparams(**changes), train_steps=1)

    with pytest.raises((ValueError, LookupError), match=message):
        t2tp.Program(step)
