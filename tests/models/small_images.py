"""Small image models, and batches for them."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.hparam import HParams
from tests.models.small_lm import changed, outputs

BATCH, CLASSES = 8, 10


def make_hparams(hparams_set: str, **values: object) -> HParams:
    """Returns a registered set on one device, with changes."""
    return changed(hparams_set, **{"mesh_shape": "", **values})


def make_batch(height: int = 8, width: int = 8, channels: int = 1) -> dict[str, np.ndarray]:
    """Returns random images, the last two of which have no weight."""
    random = np.random.default_rng(0)
    return {
        "inputs": random.uniform(size=[BATCH, height, width, channels]).astype(np.float32),
        "targets": random.integers(CLASSES, size=BATCH).astype(np.int32),
        "weights": np.array([1.0] * (BATCH - 2) + [0.0] * 2, np.float32),
    }


def features_of(batch: Mapping[str, np.ndarray]) -> dict[str, t2tp.Feature]:
    """Returns a batch's features."""
    names = ("batch", "height", "width", "channels")
    return {
        name: t2tp.Feature(
            mtf.Shape(list(map(mtf.Dimension, names, value.shape))), tf.as_dtype(value.dtype)
        )
        for name, value in batch.items()
    }


def loss_program(model, hparams, batch, mesh_shape="", layout=None, training=True, levels=CLASSES):
    """Returns a program that computes the `outputs` of a loss, with gradients in training."""

    def step(mesh, features):
        made = registry.model(model)(hparams, {"targets": levels})
        made.check_features(features)
        out = made.loss(mesh, features, training)
        return outputs(mesh, out, training)

    return t2tp.Program(
        step,
        features_of(batch),
        mesh_shape=mesh_shape,
        layout=hparams.layout if layout is None else layout,
    )


def float64_params(program: t2tp.Program) -> dict[str, tf.Tensor]:
    """Returns the initial values of the trainable variables by name."""
    return {
        v.spec.name: tf.constant(v.numpy(), tf.float64)
        for v in program.variables
        if v.spec.trainable
    }


def assert_close(values, wanted, tolerance):
    """Checks differences relative to each tensor's largest element.

    Tensors of small elements are compared relative to 1/1000 of the largest element of all tensors,
    because gradients that are zero in exact arithmetic consist of rounding errors.
    """
    largest = max(np.abs(value).max() for value in wanted.values())
    for name, value in wanted.items():
        scale = max(np.abs(value).max(), 1e-3 * largest)
        np.testing.assert_allclose(
            values[name], value, rtol=0, atol=tolerance * scale, err_msg=name
        )
