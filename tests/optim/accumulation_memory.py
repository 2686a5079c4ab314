"""Prints how many bytes a training step needs above what was there before.

It is run in a process of its own: memory's peak can be measured only once in a process.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import registry
from t2tp.optim import train_step
from tests.models.small_lm import one_document_a_row
from tests.peak_memory import peak_bytes

BATCH, LENGTH, VOCAB_SIZE = 128, 128, 4096


def run(microbatches: int) -> int:
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        f"d_model=64,d_ff=256,d_kv=16,optimizer=sgd,microbatches={microbatches},loss_chunk=-1"
    )
    model = registry.model("transformer_lm")(hparams, {"targets": VOCAB_SIZE})

    def step(mesh, features):
        done = train_step(lambda x: model.loss(mesh, x, training=True), features, mesh, hparams, 9)
        return {"loss": done.loss}

    feature = t2tp.Feature(f"batch:{BATCH};length:{LENGTH}", tf.int32)
    targets = np.random.default_rng(0).integers(1, VOCAB_SIZE, [BATCH, LENGTH]).astype(np.int32)
    batch = one_document_a_row(targets)
    program = t2tp.Program(step, dict.fromkeys(batch, feature), xla=False)
    program.trace()
    before = peak_bytes()
    float(program(batch)["loss"])
    return peak_bytes() - before


def main() -> None:
    print(run(int(sys.argv[1])))
