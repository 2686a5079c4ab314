"""Convolutions and batch norm as layers: variables, training and evaluation."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.layers.convolution import Convolution, batch_norm

SHAPE = "batch:4;height:8;width:6;channels:4"


def images(seed=0):
    return np.random.default_rng(seed).normal(1.0, 2.0, size=(4, 8, 6, 4)).astype(np.float32)


def program_of(layer, mesh_shape="", layout="", variables=None):
    return t2tp.Program(
        lambda mesh, given: {"y": layer(given["x"])},
        {"x": t2tp.Feature(SHAPE)},
        layout=t2tp.Layout(mesh_shape, layout),
        variables=variables,
    )


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("a:2;b:2", "batch:a;height:b")])
def test_batch_norm_remembers_and_serves_what_keras_does(mesh_shape, layout):
    training, evaluation = (
        functools.partial(batch_norm, training=each, momentum=0.9, epsilon=1e-3)
        for each in (True, False)
    )
    training = program_of(training, mesh_shape, layout)
    evaluation = program_of(evaluation, mesh_shape, layout, variables=training.variables)
    keras = tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-3)
    for seed in range(3):
        y, wanted = training({"x": images(seed)})["y"], keras(images(seed), training=True)
        np.testing.assert_allclose(y, wanted, atol=1e-5)
    training({"x": np.full_like(images(0), np.inf)})  # a skipped step
    values = {v.spec.name: v.numpy() for v in training.variables}
    trainable = {v.spec.name for v in training.variables if v.spec.trainable}
    assert trainable == {"norm_scale", "norm_offset"}
    np.testing.assert_allclose(values["moving_mean"], keras.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(values["moving_variance"], keras.moving_variance, rtol=1e-5)
    for _ in range(2):  # evaluation does not change the averages
        y = evaluation({"x": images(7)})["y"]
        np.testing.assert_allclose(y, keras(images(7), training=False), atol=1e-5)


def test_initial_filters_have_the_variance_of_their_outputs():
    made = program_of(Convolution(mtf.Dimension("channels", 64), 3)).variables
    assert made["filters"].numpy().std() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
