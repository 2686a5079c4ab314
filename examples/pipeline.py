"""A language model whose layers are in two stages, each split over two devices.

    python examples/pipeline.py

It prints what each stage does at each tick, learns to repeat the first half of a sequence, and
prints how long stages waited for each other.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import registry
from t2tp.layout_report import explain
from t2tp.mesh.layout import Layout
from t2tp.optim import train_step

BATCH, LENGTH, TOKENS, STEPS = 32, 16, 32, 30

hparams = registry.hparams("transformer_lm_plain_tiny")
hparams.parse(
    "mesh_shape=stage:2;model:2,layout=layers:stage;heads:model;d_ff:model;vocab:model,"
    "pipeline_schedule=1f1b,microbatches=8,num_hidden_layers=4,d_model=64,d_ff=128,d_kv=16,"
    "max_length=16,learning_rate_schedule=constant,learning_rate_constant=0.003"
)
model = registry.model("transformer_lm")(hparams, {"targets": TOKENS})


def step_fn(mesh, features):
    """Computes a step; the layers' stages work on microbatches."""

    def loss(microbatch):
        return model.loss(mesh, microbatch, training=True)

    done = train_step(loss, features, mesh, hparams, STEPS)
    return {"loss": done.loss, "idle": done.scalars["pipeline_idle_share"]}


def make_batch(step: int) -> dict[str, np.ndarray]:
    """Returns sequences whose second half repeats the first."""
    half = np.random.default_rng(step).integers(1, TOKENS, [BATCH, LENGTH // 2])
    positions = np.broadcast_to(np.arange(LENGTH), [BATCH, LENGTH])
    return {
        "targets": np.concatenate([half, half], 1).astype(np.int32),
        "targets_segmentation": np.ones([BATCH, LENGTH], np.int32),
        "targets_position": positions.astype(np.int32),
    }


def main() -> None:
    """Shows the schedule and trains."""
    feature = t2tp.Feature(f"batch:{BATCH};length:{LENGTH}", tf.int32)
    program = t2tp.Program(
        step_fn, dict.fromkeys(make_batch(0), feature), layout=Layout.from_hparams(hparams)
    )
    print(str(explain(program)).partition("\n\nMemory")[0])
    for step in range(STEPS):
        out = program(make_batch(step), step=step)
        if step % 10 == 9 or step == 0:
            loss, idle = float(out["loss"]), float(out["idle"])
            print(f"step {step + 1}  loss {loss:.3f}  stages waited {idle:.0%} of the time")


if __name__ == "__main__":
    main()
