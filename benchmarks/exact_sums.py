"""Measures the cost of `exact_sums`: processor time of a training step with and without it.

    TF_ENABLE_ONEDNN_OPTS=0 TF_NUM_INTRAOP_THREADS=1 python benchmarks/exact_sums.py [--steps=10]

A processor with AVX2 and without AVX-512 also needs `ONEDNN_MAX_CPU_ISA=AVX` (docs/exact.md).

The two programs of a layout run in turns in one process. They train a language model of 4 layers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.mesh.layout import Layout
from t2tp.optim import train_step

TENSOR = "batch:data;heads:model;kv_heads:model;d_ff:model"
# Name -> mesh shape, rules, other hparams.
LAYOUTS = {
    "one device": ("", "", ""),
    "data parallel": ("data:2", "batch:data", ""),
    "tensor parallel": ("model:2", TENSOR, ""),
    "data x tensor": ("data:2;model:2", TENSOR, ""),
    "context parallel": ("seq:2", "length:seq", ""),
    "ZeRO 3": ("data:2", "batch:data", "zero_stage=3"),
}
VOCAB, ROWS, LENGTH = 8192, 16, 128


def make_program(mesh_shape: str, layout: str, others: str, exact_sums: int) -> t2tp.Program:
    """Returns a training step of the model on a mesh."""
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        f"d_model=256,d_ff=1024,num_heads=8,d_kv=32,num_hidden_layers=4,max_length={LENGTH},"
        f"exact_sums={exact_sums},{others}".rstrip(",")
    )
    hparams.set("mesh_shape", mesh_shape)
    hparams.set("layout", layout)
    model = registry.model("transformer_lm")(hparams, {"targets": VOCAB})

    def step(mesh: t2tp.Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        done = train_step(lambda x: model.loss(mesh, x, True), features, mesh, hparams, 100)
        return {"loss": done.loss}

    shape = f"batch:{ROWS};length:{LENGTH}"
    names = ("targets", "targets_segmentation", "targets_position")
    return t2tp.Program(
        step, {n: t2tp.Feature(shape, tf.int32) for n in names}, layout=Layout.from_hparams(hparams)
    )


def main() -> None:
    """Prints a line for each layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layout", choices=LAYOUTS, default="one device")
    arguments = parser.parse_args()
    ids = np.random.default_rng(0).integers(1, VOCAB, [ROWS, LENGTH]).astype(np.int32)
    batch = {
        "targets": ids,
        "targets_segmentation": np.ones_like(ids),
        "targets_position": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
    }
    programs = [make_program(*LAYOUTS[arguments.layout], parts) for parts in (0, 8)]
    seconds: list[list[float]] = [[], []]
    for step in range(arguments.steps + 2):
        for program, times in zip(programs, seconds, strict=True):
            begin = time.process_time()
            float(program(batch, step)["loss"])
            if step > 1:
                times.append(time.process_time() - begin)
    off, on = map(statistics.median, seconds)
    print(f"{arguments.layout}: {off:.3f} s without, {on:.3f} s with exact_sums=8: {on / off:.2f}")


if __name__ == "__main__":
    main()
