"""Compares the cost of all rows' losses and gradient norms with the cost of a training step.

    python benchmarks/per_row.py [--rows=64] [--turns=5]

`t2tp_replay` computes such losses and norms. They and a training step are computed in turns; prints
the processor seconds of each, and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, optim, registry
from t2tp.optim.per_row import row_losses_and_norms

SETS = {"transformer_lm_tiny": "transformer_lm", "vit_tiny": "vit", "mlp_tiny": "mlp"}
CLASSES, VOCABULARY = 10, 8192


def batch_of(name: str, rows: int, length: int) -> dict[str, np.ndarray]:
    """Returns random rows: texts of `length` tokens, or images."""
    random = np.random.default_rng(0)
    if name == "transformer_lm_tiny":
        positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
        targets = random.integers(1, VOCABULARY, [rows, length], "int32")
        ones = np.ones_like(targets)
        return {"targets": targets, "targets_segmentation": ones, "targets_position": positions}
    shape = [28, 28, 1] if name == "mlp_tiny" else [32, 32, 3]
    return {
        "inputs": random.random([rows, *shape], "float32"),
        "targets": random.integers(0, CLASSES, rows, "int32"),
        "weights": np.ones(rows, "float32"),
    }


def feature_of(array: np.ndarray) -> t2tp.Feature:
    """Returns the dimensions and dtype of a feature."""
    names = ("batch", "length") if array.ndim == 2 else ("batch", "height", "width", "channels")
    shape = [mtf.Dimension(*each) for each in zip(names, array.shape, strict=False)]
    return t2tp.Feature(mtf.Shape(shape), tf.as_dtype(array.dtype))


def measure(name: str, rows: int, turns: int) -> str:
    """Returns the table row of an hparams set."""
    hparams = registry.hparams(name)
    sizes = {"targets": VOCABULARY} if "lm" in name else {"targets": CLASSES, "inputs": 256}
    model = registry.model(SETS[name])(hparams, sizes)
    batch = batch_of(name, rows, hparams.max_length)
    features = {key: feature_of(array) for key, array in batch.items()}

    def step(mesh: mtf.Mesh, parts: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        loss = model.loss(mesh, parts, training=True).loss
        return {"loss": loss} | optim.apply_gradients(loss, mesh, hparams, 1000)

    def by_row(mesh: mtf.Mesh, parts: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        loss = model.loss(mesh, parts, training=False).loss
        return {"loss": row_losses_and_norms(loss, mtf.Dimension("batch", rows), mesh)[1]}

    train = t2tp.Program(step, features)
    both = [train, t2tp.Program(by_row, features, variables=train.variables)]
    taken: list[list[float]] = [[], []]
    for turn in range(turns + 1):
        for program, seconds in zip(both, taken, strict=True):
            began = time.process_time()
            np.asarray(program(batch, step=turn)["loss"])
            seconds.append(time.process_time() - began)
    a_step, all_rows = (statistics.median(seconds[1:]) for seconds in taken)
    return f"| {name} | {a_step:.3f} | {all_rows:.3f} | {all_rows / a_step:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    print("| set | a step, s | all rows, s | ratio |\n| -- | -- | -- | -- |")
    for name in SETS:
        print(measure(name, args.rows, args.turns), flush=True)


if __name__ == "__main__":
    main()
