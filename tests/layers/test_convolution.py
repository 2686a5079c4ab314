"""Convolutions and batch norm as layers: what they learn, and what they remember."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.layers.convolution import BatchNorm, Convolution

SHAPE = "batch:4;height:8;width:6;channels:4"


def images(seed=0):
    return np.random.default_rng(seed).normal(1.0, 2.0, size=(4, 8, 6, 4)).astype(np.float32)


def program_of(layer, mesh_shape="", layout="", variables=None):
    return t2tp.Program(
        lambda mesh, given: {"y": layer(given["x"])},
        {"x": t2tp.Feature(SHAPE)},
        mesh_shape=mesh_shape,
        layout=layout,
        variables=variables,
    )


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("a:2;b:2", "batch:a;height:b")])
def test_batch_norm_remembers_and_serves_what_keras_does(mesh_shape, layout):
    norm = BatchNorm(0.9, 1e-3)
    training = program_of(lambda x: norm(x, True), mesh_shape, layout)
    evaluation = program_of(
        lambda x: norm(x, False), mesh_shape, layout, variables=training.variables
    )
    keras = tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-3)
    for seed in range(3):
        y, wanted = training({"x": images(seed)})["y"], keras(images(seed), training=True)
        np.testing.assert_allclose(y, wanted, atol=1e-5)
    values = {v.spec.name: v.numpy() for v in training.variables}
    np.testing.assert_allclose(values["moving_mean"], keras.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(values["moving_variance"], keras.moving_variance, rtol=1e-5)
    for _ in range(2):  # An evaluation leaves them as they are.
        y = evaluation({"x": images(7)})["y"]
        np.testing.assert_allclose(y, keras(images(7), training=False), atol=1e-5)


def test_no_gradient_changes_the_averages():
    trainable = {
        v.spec.name: v.spec.trainable
        for v in program_of(lambda x: BatchNorm(0.9, 1e-3)(x, True)).variables
    }
    assert trainable == {
        "norm_scale": True,
        "norm_offset": True,
        "moving_mean": False,
        "moving_variance": False,
    }


def test_initial_filters_have_the_variance_of_their_outputs():
    made = program_of(Convolution(mtf.Dimension("channels", 64), 3)).variables
    assert made["filters"].numpy().std() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
