"""The language model's training step in t2tp: the registered `transformer_lm`."""

from __future__ import annotations

import os

import turn

turn.PARSER.add_argument("--only_trace", action="store_true", help="end when it is traced")
args = turn.arguments()

import time

import language_model as lm
import numpy as np
import ours_model
import tensorflow as tf

import t2tp
from t2tp import optim

sizes = turn.sizes(args)
model = ours_model.model(sizes, args.dtype)
devices = args.data * args.model
cluster = None
if args.processes > 1:
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    cluster = t2tp.connect(
        devices,
        num_processes=args.processes,
        process_id=int(os.environ["RANK"]),
        coordinator=address,
    )


def step_fn(mesh, features):
    loss = model.loss(mesh, features, training=True).loss
    optim.apply_gradients(loss, mesh, model.hparams, train_steps=1000)
    return {"loss": loss}


feature = t2tp.Feature(f"batch:{sizes.batch};length:{sizes.length}", tf.int32)
program = t2tp.Program(
    step_fn,
    {n: feature for n in ("targets", "targets_segmentation", "targets_position")},
    mesh_shape=f"data:{args.data};model:{args.model}",
    layout=ours_model.LAYOUT,
    cluster=cluster,
    xla=args.xla or None,
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
graph = program.trace().graph
traced = {
    "trace": time.process_time() - start,  # of one core: tracing is Python
    "operations": len(graph.get_operations()),
    "version": f"t2tp on tensorflow {tf.__version__}",
}
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


if args.only_trace:
    turn.say(traced)
else:
    turn.take_turns(step, **traced)
