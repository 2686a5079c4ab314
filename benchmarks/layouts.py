"""Counts the memory and traffic of a device in layouts on 8 devices, for docs/layouts.md.

    python benchmarks/layouts.py [--hparams_set=gpt2_medium] [--batch_size=8]

No step runs. The program lowers a step of each layout without devices; slices and collectives are
the same as with devices, and it counts their bytes. A device sends the bytes of a ring: for a
tensor of `b` bytes over `n` devices, 2 b (n - 1) / n for an all-reduce, b (n - 1) / n for a
reduce-scatter or an all-to-all, and b (n - 1) for an all-gather of parts of b bytes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.mesh.collective_kinds import collective_kind
from t2tp.mesh.collective_log import Collective
from t2tp.mesh.layout import Layout
from t2tp.optim import train_step
from t2tp.program.abstract_program import AbstractProgram

TENSOR = "batch:data;heads:model;d_ff:model;vocab:model"
# Name -> mesh shape, rules, other hparams.
LAYOUTS = {
    "data parallel": ("data:8", "batch:data", ""),
    "ZeRO 1": ("data:8", "batch:data", "zero_stage=1"),
    "ZeRO 2": ("data:8", "batch:data", "zero_stage=2"),
    "ZeRO 3": ("data:8", "batch:data", "zero_stage=3"),
    "tensor parallel": ("model:8", TENSOR, ""),
    "and sequence parallel": (
        "model:8",
        f"{TENSOR};residual_length:model",
        "sequence_parallel=true",
    ),
    "context parallel": ("seq:8", "length:seq", ""),
    "data x tensor": ("data:2;model:4", TENSOR, ""),
    "data x tensor, ZeRO 1": ("data:2;model:4", TENSOR, "zero_stage=1"),
    "data x context x tensor, ZeRO 3": (
        "data:2;seq:2;model:2",
        f"{TENSOR};length:seq",
        "zero_stage=3,zero_axes=data+seq",
    ),
    "ZeRO 3 inside pods": ("pod:2;data:4", "batch:pod+data", "zero_stage=3,zero_axes=data"),
}


def program_of(hparams: HParams, vocab_size: int) -> AbstractProgram:
    """Returns a training step on a batch of packed sequences."""
    batch = mtf.Dimension("batch", hparams.batch_size)
    shape = mtf.Shape([batch, mtf.Dimension("length", hparams.max_length)])
    names = ("targets", "targets_segmentation", "targets_position")
    made = registry.model("transformer_lm")(hparams, {"targets": vocab_size})

    def step(mesh, features):
        done = train_step(lambda x: made.loss(mesh, x, True), features, mesh, hparams, 1)
        return {"loss": done.loss}

    features = {name: t2tp.Feature(shape, tf.int32) for name in names}
    return AbstractProgram(step, features, layout=Layout.from_hparams(hparams))


def sent(collectives: Iterable[Collective]) -> float:
    """Returns the bytes that a device sends in a step."""
    return sum(
        collective_kind(c.kind).sent_bytes(c.group_size) * c.bytes * c.times for c in collectives
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hparams_set", default="gpt2_medium")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--vocab_size", type=int, default=50257)
    arguments = parser.parse_args()
    print("| layout | mesh and rules | state at rest | gathered | activations | sent a step |")
    print("| -- | -- | -- | -- | -- | -- |")
    for name, (mesh_shape, layout, changes) in LAYOUTS.items():
        hparams = registry.hparams(arguments.hparams_set)
        hparams.parse(
            "microbatches=1,activation_dtype=bfloat16,batch_size_unit=sequences_per_batch"
        )
        hparams.batch_size = arguments.batch_size
        hparams.mesh_shape, hparams.layout = mesh_shape, layout
        hparams.parse(changes)
        program = program_of(hparams, arguments.vocab_size)
        memory = t2tp.explain(program).data.memory
        columns = (
            memory["weights"] + memory["optimizer"],
            memory.get("gathered", 0),
            memory.get("kept", 0),
            sent(program.collective_log()),
        )
        cells = " | ".join(f"{size / 1e9:.2f} GB" if size else "-" for size in columns)
        rules = f"`{mesh_shape}`, `{layout}`" + (f", `{changes}`" if changes else "")
        print(f"| {name} | {rules} | {cells} |")


if __name__ == "__main__":
    main()
