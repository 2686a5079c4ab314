"""One of several processes that train layers whose variables are sharded at rest."""

import gc
import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf1

import t2tp
import t2tp.hparams
from t2tp import mtf, optim, registry
from t2tp.mesh.layout import Layout
from tests.peak_memory import begin_peak_again, give_back_freed_blocks, peak_bytes, resident_bytes

BATCH, D_MODEL = mtf.Dimension("batch", 8), mtf.Dimension("d_model", 512)
D_FF = mtf.Dimension("d_ff", 2048)
MATRIX_BYTES = 4 * D_MODEL.size * D_FF.size
LAYER_BYTES = 2 * MATRIX_BYTES


def run(cluster: t2tp.Cluster, num_layers: int, changes: str, directory: str) -> dict[str, object]:
    """Trains, saves and restores; returns each phase's extra memory at its peak, and the losses."""
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        "optimizer=adam,weight_decay=0.1,learning_rate_constant=1e-5,"
        "learning_rate_schedule=constant,"
        f"mesh_shape=data:{len(cluster.devices)},layout=batch:data,zero_stage=3"
    )
    hparams.parse(changes)

    def weight(mesh, name, *dims):
        initializer = tf1.random_normal_initializer(stddev=1e-2)
        return mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=initializer)

    def step(mesh, features):
        y = x = features["x"]
        for layer in range(num_layers):
            w_in = weight(mesh, f"layer_{layer}/in", D_MODEL, D_FF)
            w_out = weight(mesh, f"layer_{layer}/out", D_FF, D_MODEL)
            hidden = mtf.relu(mtf.einsum([y, w_in], [BATCH, D_FF]))
            y += mtf.einsum([hidden, w_out], x.shape)
        loss = mtf.reduce_mean(mtf.square(y - x))
        optim.apply_gradients(loss, mesh, hparams, train_steps=10)
        return {"loss": loss}

    x = np.random.default_rng(0).normal(size=(BATCH.size, D_MODEL.size)).astype(np.float32)
    begin_peak_again()
    program = t2tp.Program(
        step,
        {"x": t2tp.Feature(mtf.Shape([BATCH, D_MODEL]))},
        layout=Layout.from_hparams(hparams),
        cluster=cluster,
    )
    most = {"initial values": peak_bytes() - resident_bytes()}
    # The first step traces the program, which stays in memory.
    losses = [float(program({"x": x}, step=0)["loss"])]
    traced = resident_bytes()
    begin_peak_again()
    losses += [float(program({"x": x}, step=number)["loss"]) for number in (1, 2, 3)]
    most["step"] = peak_bytes() - traced
    begin_peak_again()
    t2tp.save_checkpoint(directory, program, 4)
    most["save"] = peak_bytes() - traced
    losses.append(float(program({"x": x}, step=4)["loss"]))
    begin_peak_again()
    t2tp.restore_checkpoint(directory, program)
    most["restore"] = peak_bytes() - traced
    losses.append(float(program({"x": x}, step=4)["loss"]))
    return {**most, "losses": losses}


def main() -> None:
    """Prints the results for each change of hparams among the arguments."""
    give_back_freed_blocks()
    processes, num_layers, directory, *changes = sys.argv[1:]
    cluster = t2tp.connect(int(processes))
    found = []
    for number, each in enumerate(changes):
        found.append(run(cluster, int(num_layers), each, f"{directory}/{number}"))
        gc.collect()  # programs are in reference cycles
    print(json.dumps(found))
