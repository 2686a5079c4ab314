"""Norms, positions, feed-forward networks, embeddings and dropout match their formulas."""

import math

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.building.initial_values import InitialValues
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.mixture_of_experts import grouped_shape
from t2tp.layers.normalization import Norm
from t2tp.layers.positions import sinusoidal
from tests.layers.running import run

X = np.random.default_rng(0).normal(size=[4, 6, 8])
INPUTS = {"x": ("batch:4;length:6;d_model:8", X)}
LAYOUTS = [("", ""), ("a:2;b:2", "batch:a;d_ff:b"), ("a:2;b:2", "batch:a;d_model:b")]


# Initialization -> standard deviations of matrices of 64 x 1024 and 1024 x 64.
RULES = {
    "fan_in": (1 / 8, 1 / 32),
    "fan_avg": ((2 / 1088) ** 0.5, (2 / 1088) ** 0.5),
    "spectral": (1 / 8, 1 / 128),
    "normal": (0.02, 0.02),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_sets_initial_values_by_inputs_and_outputs_times_the_gain(rule):
    def network(x):
        with x.mesh.building(initial_values=InitialValues(rule, 0.02)):
            return {"y": FeedForward("relu", 1024, output_scale=0.5)(x, training=False)}

    x = {"x": ("batch:2;d_model:64", np.ones([2, 64]))}
    made = run(network, x, "a:2", "d_ff:a").variables
    of_input, of_output = RULES[rule]
    assert made["input"].std() == pytest.approx(of_input, rel=0.02)
    assert made["output"].std() == pytest.approx(of_output / 2, rel=0.02)


def test_dropout_of_a_network_is_for_training():
    network = FeedForward("relu", 64, relu_dropout=0.5)
    ran = run(lambda x: {"on": network(x, True), "off": network(x, False)}, INPUTS)
    plain = run(lambda x: {"y": FeedForward("relu", 64)(x, True)}, INPUTS)
    np.testing.assert_array_equal(ran["off"], plain["y"])
    assert np.abs(ran["on"] - ran["off"]).max() > 0.1


def positions(*sizes):
    return np.random.default_rng(1).integers(0, 30, sizes)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_sinusoidal_positions_are_tensor2tensors(mesh_shape, layout):
    given = {"at": ("batch:4;length:6", positions(4, 6))}
    d_model = mtf.Dimension("d_model", 8)
    ran = run(lambda at: {"y": sinusoidal(at, d_model, tf.float32)}, given, mesh_shape, layout)
    turns = np.exp(-np.arange(4) * math.log(10000.0) / 3)
    angle = given["at"][1][..., None] * turns
    wanted = np.concatenate([np.sin(angle), np.cos(angle)], -1)
    np.testing.assert_allclose(ran["y"], wanted, atol=5e-6)


def test_sinusoidal_positions_need_pairs():
    with pytest.raises(ValueError, match="must be even"):
        run(
            lambda at: {"y": sinusoidal(at, mtf.Dimension("d_model", 7), tf.float32)},
            {"at": ("batch:4", positions(4))},
        )


def test_decisions_of_dropout_can_be_shared_along_a_dimension():
    given = {"x": (INPUTS["x"][0], np.ones_like(X))}
    dropout = Dropout(0.5, ["length"])
    y = run(lambda x: {"y": dropout(x, True), "off": dropout(x, False)}, given)
    assert set(np.unique(y["y"])) == {0.0, 2.0}
    assert (y["y"] == y["y"][:, :1]).all()
    assert (y["off"] == 1).all()
    alone = run(lambda x: {"y": Dropout(0.5)(x, True)}, given)["y"]
    assert (alone != alone[:, :1]).any()


REFUSED = [
    (lambda: Norm("rsm"), "did you mean rms"),
    (lambda: FeedForward("swigl", 8), "did you mean swiglu"),
    (lambda: Dropout(1.0), "rate of dropout is 1.0, and must be .* below 1"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_does_not_exist_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_dimension_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="'lenght', and .* has no such dimension"):
        run(lambda x: {"y": Dropout(0.5, ["lenght"])(x, True)}, INPUTS)


CASES = [
    (0, [4, 6]),
    (6, [4, 6]),
    (4, [4, 2, 3]),
    (1, [4, 6, 1]),
    (12, [2, 12]),
    (18, [2, 12]),
    (99, [1, 24]),
]


@pytest.mark.parametrize(("size", "wanted"), CASES)
def test_groups_divide_rows_or_rows_divide_groups(size, wanted):
    y = run(lambda x: {"y": mtf.reshape(x, grouped_shape(x.shape, size))}, INPUTS)["y"]
    assert list(y.shape) == [*wanted, 8]
    np.testing.assert_allclose(y.reshape(24, 8), X.reshape(24, 8), rtol=1e-6)
