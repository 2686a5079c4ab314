"""Prints how many bytes a step of a pipeline needs above what was there before, and how many of
these a stage keeps of each microbatch.

It is run in a process of its own, with the name of a schedule: memory's peak can be measured only
once in a process.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import registry
from t2tp.mesh.layout import Layout
from t2tp.mesh.stages import Pipeline
from t2tp.optim import train_step
from t2tp.pipeline.loop import PipelineLoop
from tests.models.small_lm import one_document_a_row
from tests.peak_memory import give_back_freed_blocks, peak_bytes

STAGES, MICROBATCHES, LENGTH, VOCAB_SIZE = 4, 16, 256, 64
BATCH = 4 * MICROBATCHES


def run(schedule: str) -> tuple[int, int]:
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        f"d_model=64,d_ff=256,d_kv=16,max_length={LENGTH},optimizer=sgd,num_hidden_layers={STAGES},"
        f"microbatches={MICROBATCHES}"
    )
    model = registry.model("transformer_lm")(hparams, {"targets": VOCAB_SIZE})

    def step(mesh, features):
        done = train_step(lambda x: model.loss(mesh, x, training=True), features, mesh, hparams, 9)
        return {"loss": done.loss}

    feature = t2tp.Feature(f"batch:{BATCH};length:{LENGTH}", tf.int32)
    targets = np.random.default_rng(0).integers(1, VOCAB_SIZE, [BATCH, LENGTH]).astype(np.int32)
    batch = one_document_a_row(targets)
    layout = Layout(f"stage:{STAGES}", "layers:stage", None, Pipeline(schedule))
    program = t2tp.Program(step, dict.fromkeys(batch, feature), layout=layout, xla=False)
    program.trace()
    operations, _ = program.graph()
    (loop,) = (op for op in operations.operations if isinstance(op, PipelineLoop))
    kept = sum(x.shape.size * x.dtype.size for x in loop.partition.pieces(0, 1).saved_activations)
    before = peak_bytes()
    float(program(batch)["loss"])
    return peak_bytes() - before, kept


def main() -> None:
    give_back_freed_blocks()
    print(*run(sys.argv[1]))


if __name__ == "__main__":
    main()
