"""The language model's training step in Keras 3 on TensorFlow: its layers, compile, train_on_batch.

Keras decides by itself whether XLA compiles the step (jit_compile="auto").
"""

from __future__ import annotations

import os

import turn

args = turn.arguments()
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import language_model as lm
import numpy as np
from keras import layers

sizes = turn.sizes(args)
if args.dtype == "bfloat16":
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
values = lm.initial_values(sizes)


class Positions(layers.Layer):
    """Adds a learned vector to each position."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x):
        return x + keras.ops.cast(self.table, x.dtype)


def dense(units: int, activation: str | None = None) -> layers.Dense:
    return layers.Dense(units, activation=activation, use_bias=False)


inputs = keras.Input([sizes.length], dtype="int32")
embedding = layers.ReversibleEmbedding(sizes.vocab, sizes.d_model)
positions = Positions()
x = positions(embedding(inputs))
blocks = []
for _ in range(sizes.layers):
    norms = [layers.RMSNormalization(epsilon=1e-6) for _ in range(2)]
    attention = layers.MultiHeadAttention(sizes.heads, sizes.d_kv, use_bias=False)
    up, down = dense(sizes.d_ff, "relu"), dense(sizes.d_model)
    y = norms[0](x)
    x = x + attention(y, y, use_causal_mask=True)
    x = x + down(up(norms[1](x)))
    blocks.append((norms[0], attention, norms[1], up, down))
norm = layers.RMSNormalization(epsilon=1e-6)
logits = layers.Activation("linear", dtype="float32")(embedding(norm(x), reverse=True))
model = keras.Model(inputs, logits)

embedding.set_weights([values["embedding"]])
positions.set_weights([values["positions"]])
norm.set_weights([values["norm"]])
for i, (norm_1, attention, norm_2, up, down) in enumerate(blocks):
    norm_1.set_weights([values[f"{i}/norm_1"]])
    attention.set_weights([values[f"{i}/{name}"] for name in ("q", "k", "v", "out")])
    norm_2.set_weights([values[f"{i}/norm_2"]])
    up.set_weights([values[f"{i}/up"]])
    down.set_weights([values[f"{i}/down"]])

model.compile(
    optimizer=keras.optimizers.Adam(
        lm.LEARNING_RATE, lm.BETA1, lm.BETA2, lm.EPSILON, global_clipnorm=lm.CLIP_NORM
    ),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile="auto",
)
targets = lm.targets(sizes)
before = np.pad(targets[:, :-1], [[0, 0], [1, 0]])


def step() -> float:
    # The returned loss is a mean over all batches since the last reset.
    model.reset_metrics()
    return float(model.train_on_batch(before, targets))


turn.take_turns(step, version=f"keras {keras.__version__}", jit_compile=bool(model.jit_compile))
