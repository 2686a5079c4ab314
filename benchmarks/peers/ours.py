"""The language model's training step in t2tp: the registered `transformer_lm`."""

from __future__ import annotations

import turn

args = turn.arguments()

import time

import language_model as lm
import numpy as np
import tensorflow as tf

import t2tp.hparams
import t2tp.models
from t2tp import optim, registry

sizes = lm.CASES[args.case]
hparams = registry.hparams("transformer_lm_tiny")
hparams.parse(
    f"d_model={sizes.d_model},d_ff={sizes.d_ff},num_heads={sizes.heads},d_kv={sizes.d_kv},"
    f"num_hidden_layers={sizes.layers},max_length={sizes.length},"
    f"layer_prepostprocess_dropout=0.0,clip_grad_norm={lm.CLIP_NORM},optimizer=adam,"
    f"learning_rate_schedule=constant,learning_rate_constant={lm.LEARNING_RATE},"
    f"optimizer_adam_beta1={lm.BETA1},optimizer_adam_beta2={lm.BETA2},"
    f"optimizer_adam_epsilon={lm.EPSILON},weight_decay=0.0"
)
if args.dtype != "float32":
    hparams.parse(f"activation_dtype={args.dtype}")
model = registry.model("transformer_lm")(hparams, {"targets": sizes.vocab})


def step_fn(mesh, features):
    loss = model.loss(mesh, features, training=True).loss
    optim.apply_gradients(loss, mesh, hparams, train_steps=1000)
    return {"loss": loss}


feature = t2tp.Feature(f"batch:{sizes.batch};length:{sizes.length}", tf.int32)
program = t2tp.Program(
    step_fn,
    {n: feature for n in ("targets", "targets_segmentation", "targets_position")},
    mesh_shape=f"data:{args.data};model:{args.model}",
    layout="batch:data;heads:model;d_ff:model;vocab:model",
    xla=args.xla,
)


def our_name(name: str) -> str:
    """The registered model's name of a weight."""
    if name == "norm":
        return "final/norm_scale"
    if "/" not in name:
        return name
    layer, weight = name.split("/")
    part = {"norm_2": "feed_forward/norm_scale", "up": "feed_forward/input"} | {
        "down": "feed_forward/output",
        "norm_1": "attention/norm_scale",
        "out": "attention/output",
    }
    return f"layer_{int(layer):02d}/{part.get(weight, f'attention/{weight}')}"


for name, value in lm.initial_values(sizes).items():
    variable = program.variables[our_name(name)]
    for pnum in program.cluster.local_pnums:
        part = value[program.layout.slices(variable.spec.shape, pnum)]
        variable.slice_of(pnum).assign(part)
start = time.process_time()
program.trace()
trace_seconds = time.process_time() - start  # of one core: tracing is Python
targets = lm.targets(sizes)
batch = program.place(
    {
        "targets": targets,
        "targets_segmentation": np.ones_like(targets),
        "targets_position": np.broadcast_to(np.arange(sizes.length, dtype=np.int32), targets.shape),
    }
)
steps_done = 0


def step() -> float:
    global steps_done
    loss = float(program(batch, step=steps_done)["loss"])
    steps_done += 1
    return loss


turn.take_turns(step, version=f"t2tp on tensorflow {tf.__version__}", trace=trace_seconds)
