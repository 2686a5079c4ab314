"""Compares the loss curves of one training run on several layouts and in three dtypes.

    python benchmarks/mesh_invariance.py DATA_DIR [STEPS]

`transformer_lm_plain_tiny` on `languagemodel_python_stdlib`, 300 steps, one seed. The reference is
one device and float32.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
import t2tp.problems
from t2tp import mtf, optim, registry
from t2tp.mesh.layout import Layout

# Mesh shape, dtype of activations, and other hparams.
RUNS = [
    ("data:1", "float32", ""),
    ("data:4", "float32", ""),
    ("model:4", "float32", ""),
    ("data:2;model:2", "float32", ""),
    ("pod:2;data:2", "float32", "layout=batch:pod+data"),
    ("data:4", "float32", "zero_stage=1"),
    ("data:4", "float32", "zero_stage=2"),
    ("data:4", "float32", "zero_stage=3"),
    ("data:2;model:2", "float32", "zero_stage=3"),
    ("data:1", "bfloat16", ""),
    ("data:2;model:2", "bfloat16", ""),
    ("data:1", "float16", ""),
]


def loss_curve(mesh_shape: str, dtype: str, others: str, data_dir: str, steps: int) -> np.ndarray:
    """Trains, and returns the losses, float32 [steps]."""
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.activation_dtype = dtype
    hparams.mesh_shape = mesh_shape
    hparams.parse(others)
    problem = registry.problem("languagemodel_python_stdlib")()
    model = registry.model("transformer_lm")(hparams, problem.vocab_sizes(data_dir))
    batch_size, length = hparams.batch_size, hparams.max_length
    stream = problem.stream(data_dir, split="train", batch_size=batch_size, length=length, seed=0)
    sizes = {"batch": batch_size, "length": length}
    features = {
        name: t2tp.Feature(
            mtf.Shape([mtf.Dimension(dim, sizes[dim]) for dim in spec.dimensions]), spec.dtype
        )
        for name, spec in problem.features.items()
    }

    def step_fn(mesh, inputs):
        def loss_fn(features):
            return model.loss(mesh, features, training=True)

        return {"loss": optim.train_step(loss_fn, inputs, mesh, hparams, steps).loss}

    program = t2tp.Program(step_fn, features, layout=Layout.from_hparams(hparams))
    return np.array([program(stream[k], step=k)["loss"] for k in range(steps)])


def main(data_dir: str, steps: int = 300) -> None:
    tf.get_logger().setLevel("ERROR")
    t2tp.connect(4)
    titles = f"{'loss at the end':>16} {'difference: end':>16} {'largest':>8}"
    print(f"{'mesh':16} {'dtype':9} {'other hparams':22} {titles}")
    reference = None
    for mesh, dtype, others in RUNS:
        curve = loss_curve(mesh, dtype, others, data_dir, steps)
        reference = curve if reference is None else reference
        difference = np.abs(curve - reference) / reference
        figures = f"{curve[-1]:16.6f} {difference[-1]:16.1e} {difference.max():8.1e}"
        print(f"{mesh:16} {dtype:9} {others:22} {figures}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
