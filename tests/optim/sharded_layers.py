"""One of several processes that train layers whose variables are sharded at rest."""

from __future__ import annotations

import gc
import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf1

import t2tp
import t2tp.hparams
from t2tp import mtf, optim, registry
from t2tp.mesh.layout import Layout
from tests.peak_memory import give_back_freed_blocks, peak_bytes

BATCH, D_MODEL = mtf.Dimension("batch", 8), mtf.Dimension("d_model", 1024)
D_FF = mtf.Dimension("d_ff", 4096)
LAYER_BYTES = 4 * D_MODEL.size * D_FF.size


def run(num_layers: int, processes: int, optimizer: str) -> dict[str, object]:
    """Trains; the most memory of this process so far, in bytes, and losses."""
    hparams = registry.hparams("transformer_lm_tiny")
    hparams.parse(
        f"optimizer={optimizer},weight_decay=0.1,clip_grad_norm=1.0,learning_rate_constant=1e-5,"
        "learning_rate_schedule=constant,"
        f"mesh_shape=data:{processes},layout=batch:data,zero_stage=3"
    )

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
        optim.apply_gradients(loss, mesh, hparams, train_steps=10)
        return {"loss": loss}

    x = np.random.default_rng(0).normal(size=(BATCH.size, D_MODEL.size)).astype(np.float32)
    feature = t2tp.Feature(mtf.Shape([BATCH, D_MODEL]))
    program = t2tp.Program(step, {"x": feature}, layout=Layout.from_hparams(hparams))
    losses = [float(program({"x": x}, step=number)["loss"]) for number in range(3)]
    return {"peak": peak_bytes(), "losses": losses}


def main() -> None:
    """Prints what comes of the numbers of layers that are the arguments, one after another."""
    give_back_freed_blocks()
    processes, optimizer, *layers = sys.argv[1:]
    found = []
    for count in layers:
        found.append(run(int(count), int(processes), optimizer))
        gc.collect()  # Programs hold themselves.
    print(json.dumps(found))
