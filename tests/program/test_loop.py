"""A launch of several steps computes the same as single steps."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf, registry
from t2tp.mesh.layout import Layout
from t2tp.optim import train_step
from t2tp.program.program import PlacedFeatures
from tests.models import small_lm

CHANGES = {
    **{"optimizer": "muon", "ema_decay": 0.9, "on_nonfinite": "skip"},
    **{"layer_prepostprocess_dropout": 0.1, "attention_dropout": 0.1, "num_hidden_layers": 1},
}
STEPS = 8
BATCHES = [small_lm.make_batch(seed) for seed in range(STEPS)]


def program(xla=None, mesh_shape="", layout="", **changes):
    """Returns a program that trains a language model with dropout, Muon and averaged weights."""
    changes = CHANGES | {"mesh_shape": mesh_shape, "layout": layout} | changes
    hparams = small_lm.make_hparams(**changes)
    model = registry.model("transformer_lm")(hparams, {"targets": small_lm.VOCAB_SIZE})

    def step(mesh, features):
        done = train_step(lambda x: model.loss(mesh, x, True), features, mesh, hparams, STEPS)
        return {"loss": done.loss, "norm": done.scalars["gradient_norm"]}

    return t2tp.Program(step, small_lm.FEATURES, layout=Layout.from_hparams(hparams), xla=xla)


def train(trained, size, counts):
    """Trains by launches of these numbers of steps; returns outputs of steps, and variables."""
    outputs, step = [], 0
    for count in counts:
        batches = [trained.place(batch) for batch in BATCHES[step : step + count]]
        outputs += trained.loop(batches, step, size)
        step += count
    assert step == len(outputs) == STEPS
    values = {f"variable {v.spec.name}": v.numpy() for v in trained.variables}
    return {f"{name} {i}": o[name] for i, o in enumerate(outputs) for name in o} | values


# Changes of hparams, and the relative tolerance.
CASES = {
    "TensorFlow": ({}, 0),
    "XLA": ({"xla": True}, 1e-5),
    "mesh": ({"mesh_shape": "data:2;model:2", "layout": "batch:data;heads:model;d_ff:model"}, 0),
    "stages": ({"mesh_shape": "pipe:2", "layout": "layers:pipe", "num_hidden_layers": 2}, 0),
}
LONG = [pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "TensorFlow"]


@pytest.mark.parametrize("name", ["TensorFlow", *LONG])
def test_any_number_of_steps_in_a_launch_trains_the_same(name):
    changes, relative = CASES[name]
    trained = program(**changes)
    initial = [v.numpy() for v in trained.variables]

    def train_from_start(size, counts):
        for variable, value in zip(trained.variables, initial, strict=True):
            variable.assign(value)
        return train(trained, size, counts)

    single = train_from_start(1, [1] * STEPS)
    fours = train_from_start(4, [4, 4])
    shortened = train_from_start(4, [4, 3, 1])
    at_once = train_from_start(8, [8])
    for name, value in single.items():
        for launched in (shortened, at_once):
            np.testing.assert_array_equal(launched[name], fours[name], err_msg=name)
        tolerance = relative * max(1.0, np.abs(value).max())
        np.testing.assert_allclose(fours[name], value, rtol=0, atol=tolerance, err_msg=name)


def test_xla_knows_how_many_steps_a_full_launch_has():
    def step(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([]))
        (gradient,) = mtf.gradients([mtf.reduce_mean(features["x"] * w)], [w])
        mtf.optimize.SgdOptimizer(0.1).apply_grads([gradient], mesh.graph.trainable_variables)
        return {"w": w}

    compiled = t2tp.Program(step, {"x": t2tp.Feature("batch:2")}, xla=True)
    variables = [v.slices[0] for v in compiled.variables]
    arguments = tf.constant(0), tf.constant([0, 4], tf.int64), [[tf.ones(2)]] * 4
    for is_full in (True, False):
        launch = compiled.trace(4, is_full)
        # TensorFlow prints the code of a function without variables among its arguments.
        function = tf.function(
            lambda pnum, span, batches: launch(pnum, span, variables, batches),  # noqa: B023
            jit_compile=True,
            autograph=False,
        )
        hlo = function.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
        assert ('"known_trip_count":{"n":"4"}' in hlo) == is_full
        assert hlo.count(" while(") == 1


def test_a_launch_of_too_many_steps_is_refused():
    with pytest.raises(ValueError, match="A loop of size 2 runs 1 to 2 steps, not 3"):
        t2tp.Program(lambda mesh, features: {}).loop([PlacedFeatures([[]])] * 3, size=2)
