"""The language model's training step in t2tp: the registered `transformer_lm`."""

from __future__ import annotations

import os

import turn

from t2tp.quiet import import_tensorflow
from t2tp.trainer.processes.local_processes import ALLOCATOR

turn.environment.update(ALLOCATOR)  # As t2tp_launch does.
turn.PARSER.add_argument("--only_trace", action="store_true", help="end when it is traced")
turn.PARSER.add_argument("--zero_stage", type=int, default=0)
turn.PARSER.add_argument("--schedule", default="1f1b", help="of a pipeline")
args = turn.arguments()
import_tensorflow()  # As all programs of t2tp do.

import time

import language_model as lm
import numpy as np
import ours_model
import tensorflow as tf

import t2tp
from t2tp import optim
from t2tp.mesh.layout import Layout

turn.imported()
sizes = turn.sizes(args)
mesh_shape = f"data:{args.data};model:{args.model}"
changes = f"zero_stage={args.zero_stage}"
if args.stages > 1:
    mesh_shape = f"stage:{args.stages};{mesh_shape}"
    changes += (
        f",layout={ours_model.LAYOUT};layers:stage,microbatches={args.microbatches}"
        f",pipeline_schedule={args.schedule},pipeline_chunks={args.chunks}"
    )
model = ours_model.model(sizes, args.dtype, mesh_shape=mesh_shape, changes=changes)
devices = args.stages * args.data * args.model
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
    def loss_fn(features):
        return model.loss(mesh, features, training=True)

    if args.stages > 1:
        done = optim.train_step(loss_fn, features, mesh, model.hparams, train_steps=1000)
        return {"loss": done.loss} | {k: x for k, x in done.scalars.items() if "idle" in k}
    loss = loss_fn(features).loss
    optim.apply_gradients(loss, mesh, model.hparams, train_steps=1000)
    return {"loss": loss}


feature = t2tp.Feature(f"batch:{sizes.batch};length:{sizes.length}", tf.int32)
program = t2tp.Program(
    step_fn,
    {n: feature for n in ("targets", "targets_segmentation", "targets_position")},
    layout=Layout.from_hparams(model.hparams),
    cluster=cluster,
    xla=args.xla or None,
)


def our_name(name: str) -> str:
    """Returns the name that a weight has in the registered model."""
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
    for pnum in variable.local_pnums:
        part = value[program.layout.slices(variable.spec.shape, pnum)]
        variable.slice_of(pnum).assign(part)
start = time.process_time()
graph = program.trace().graph
traced = {
    "trace": time.process_time() - start,  # of one core: Python traces in one thread
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
