"""Prints how many bytes of memory a language model's training step needs.

It runs in a process of its own, because a process can measure its peak only once.
"""

import sys

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import registry
from t2tp.mesh.layout import Layout
from t2tp.optim import train_step
from tests.models.small_lm import one_document_a_row
from tests.peak_memory import peak_bytes


def measured(rows, length, vocab_size, hparams_text, layout=None):
    """Returns the bytes of a step on rows of random tokens, and the step's program."""
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(f"d_model=64,d_ff=256,d_kv=16,optimizer=sgd,{hparams_text}")
    model = registry.model("transformer_lm")(hparams, {"targets": vocab_size})

    def step(mesh, features):
        done = train_step(lambda x: model.loss(mesh, x, training=True), features, mesh, hparams, 9)
        return {"loss": done.loss}

    feature = t2tp.Feature(f"batch:{rows};length:{length}", tf.int32)
    targets = np.random.default_rng(0).integers(1, vocab_size, [rows, length]).astype(np.int32)
    batch = one_document_a_row(targets)
    program = t2tp.Program(
        step, dict.fromkeys(batch, feature), layout=layout or Layout(), xla=False
    )
    program.trace()
    before = peak_bytes()
    float(program(batch)["loss"])
    return peak_bytes() - before, program


def main() -> None:
    print(measured(128, 128, 4096, f"microbatches={sys.argv[1]},loss_chunk=-1")[0])


if __name__ == "__main__":
    main()
