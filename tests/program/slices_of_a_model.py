"""One of several processes that train, save and restore a model of which each holds a part."""

from __future__ import annotations

import json
import sys

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf
from t2tp.hparams.base import base_hparams
from t2tp.optim.adam import Adam
from tests.peak_memory import give_back_freed_blocks, peak_bytes

BATCH, D_MODEL = mtf.Dimension("batch", 8), mtf.Dimension("d_model", 2048)
D_FF = mtf.Dimension("d_ff", 8192)
LAYER_BYTES = 4 * D_MODEL.size * D_FF.size
MESH = {"mesh_shape": "model:4", "layout": "d_ff:model"}


def step_fn(num_layers):
    """Layers whose output matrix is their input matrix turned learn to give back their input."""

    def step(mesh, features):
        y = x = features["x"]
        for layer in range(num_layers):
            w = mtf.get_variable(
                mesh,
                f"layer_{layer}",
                mtf.Shape([D_MODEL, D_FF]),
                initializer=tf1.random_normal_initializer(stddev=1e-3),
            )
            hidden = mtf.relu(mtf.einsum([y, w], [BATCH, D_FF]))
            y += mtf.einsum([hidden, w], x.shape)
        loss = mtf.reduce_mean(mtf.square(y - x))
        variables = mesh.graph.trainable_variables
        grads = mtf.gradients([loss], [v.value for v in variables])
        rate = mtf.constant(mesh, 1e-5, dtype=tf.float32)
        Adam(rate, base_hparams()).apply_grads(grads, variables)
        return {"loss": loss}

    return step


def run(num_layers: int, directory: str) -> dict[str, object]:
    """Trains, saves and restores; the most memory of this process so far, in bytes, and losses."""
    x = {"x": np.random.default_rng(0).normal(size=(8, 2048)).astype(np.float32)}
    feature = {"x": t2tp.Feature(mtf.Shape([BATCH, D_MODEL]))}
    program = t2tp.Program(step_fn(num_layers), feature, **MESH)
    first = float(program(x, step=0)["loss"])
    t2tp.save_checkpoint(directory, program, 1)
    second = float(program(x, step=1)["loss"])
    t2tp.restore_checkpoint(directory, program)
    again = float(program(x, step=1)["loss"])
    return {"peak": peak_bytes(), "losses": [first, second, again]}


def main() -> None:
    """Prints what comes of the numbers of layers that are the arguments, one after another."""
    give_back_freed_blocks()
    directory, *layers = sys.argv[1:]
    print(json.dumps([run(int(count), f"{directory}/{count}") for count in layers]))
