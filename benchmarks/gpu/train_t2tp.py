"""GPT-2's training step in t2tp."""

from __future__ import annotations

import peer

args = peer.arguments()

import gpt
import kernels
import model_t2tp
import tensorflow as tf

import t2tp
from t2tp import optim

sizes = gpt.MODELS[args.model]
hparams, model = model_t2tp.make(sizes, args.length)


def step_fn(mesh, features):
    loss = model.loss(mesh, features, training=True).loss
    optim.apply_gradients(loss, mesh, hparams, train_steps=1000)
    return {"loss": loss}


feature = t2tp.Feature(f"batch:{args.batch};length:{args.length}", tf.int32)
program = t2tp.Program(step_fn, {name: feature for name in model.takes}, xla=True)
model_t2tp.load(program, sizes, args.length)
batch = program.place(gpt.packed(sizes, args.batch, args.length, args.segments))
steps_done = 0


def step() -> tf.Tensor:
    global steps_done
    steps_done += args.loop
    return program.loop([batch] * args.loop, steps_done - args.loop, args.loop)[-1]["loss"]


peer.measure(
    step,
    args.steps,
    args.batch * args.length,
    model_t2tp.peak_bytes,
    lambda: kernels.profile(step),
    steps_of_call=args.loop,
    version=model_t2tp.VERSION,
)
