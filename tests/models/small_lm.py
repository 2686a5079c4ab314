"""A language model of a few thousand parameters, and packed batches for it."""

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.models.transformer_lm import TransformerLm
from t2tp.optim import apply_gradients
from t2tp.optim.loss import LossOutput

BATCH, LENGTH, VOCAB_SIZE = 8, 12, 30  # Many meshes do not divide the vocabulary.
SHAPE = f"batch:{BATCH};length:{LENGTH}"
FEATURES = {
    name: t2tp.Feature(SHAPE, tf.int32)
    for name in ("targets", "targets_segmentation", "targets_position")
}
TRAIN_STEPS = 100
# Gradient descent, so that tests compare the gradient and not only its sign.
DESCENT = {
    **{"optimizer": "sgd", "learning_rate_schedule": "constant", "learning_rate_constant": 1.0},
    "weight_decay": 0.0,
}
SMALLER = {
    "batch_size": BATCH,
    "max_length": LENGTH,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 4,
    "d_kv": 8,
    "initializer_stddev": 1.0,
}


def changed(hparams_set: str, **values: object) -> HParams:
    """Returns a registered set with changes."""
    hparams = registry.hparams(hparams_set)
    for name, value in values.items():
        hparams.set(name, value)
    return hparams


def make_hparams(**values: object) -> HParams:
    """Returns the tiny set made smaller; large initial embeddings make attention non-uniform."""
    return changed("transformer_lm_plain_tiny", **{**SMALLER, **values})


def make_batch(seed: int = 0) -> dict[str, np.ndarray]:
    """Returns documents of 1 to 12 tokens, packed into rows; the last rows have padding."""
    lengths = [[12], [5, 7], [1, 4, 7], [11, 1], [3, 3, 3, 3], [2, 6], [4], []]
    segments = np.zeros([BATCH, LENGTH], np.int32)
    positions = np.zeros([BATCH, LENGTH], np.int32)
    for row, documents in enumerate(lengths):
        begin = 0
        for number, size in enumerate(documents, start=1):
            segments[row, begin : begin + size] = number
            positions[row, begin : begin + size] = np.arange(size)
            begin += size
    targets = np.random.default_rng(seed).integers(1, VOCAB_SIZE, size=[BATCH, LENGTH])
    return {
        "targets": np.where(segments == 0, 0, targets).astype(np.int32),
        "targets_segmentation": segments,
        "targets_position": positions,
    }


def one_document_a_row(targets: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the features of unpacked rows [batch, length]."""
    return {
        "targets": targets,
        "targets_segmentation": (targets != 0).astype(np.int32),
        "targets_position": np.broadcast_to(
            np.arange(targets.shape[1], dtype=np.int32), targets.shape
        ),
    }


def outputs(mesh: mtf.Mesh, out: LossOutput, with_gradients: bool) -> dict[str, mtf.Tensor]:
    """Returns `loss`, the metrics, and gradients w.r.t. each variable as `d_<name>`."""
    gradients = {}
    if with_gradients:
        variables = mesh.graph.trainable_variables
        grads = mtf.gradients([out.loss], [v.value for v in variables])
        gradients = {f"d_{v.name}": g for v, g in zip(variables, grads, strict=True)}
    return {"loss": out.loss, **out.metrics, **gradients}


def training_program(mesh_shape: str = "", **hparams: object) -> t2tp.Program:
    """Returns a program that trains the model."""
    made = make_hparams(**hparams)

    def step(mesh, features):
        out = TransformerLm(made, {"targets": VOCAB_SIZE}).loss(mesh, features, training=True)
        shown = apply_gradients(out.loss, mesh, made, TRAIN_STEPS)
        return {"loss": out.loss, **shown}

    return t2tp.Program(step, FEATURES, mesh_shape=mesh_shape, layout=made.layout)
