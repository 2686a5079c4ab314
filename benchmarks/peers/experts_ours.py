"""A mixture of experts in t2tp: its layer, trained by gradient descent."""

from __future__ import annotations

import turn

args = turn.arguments()

import tensorflow as tf
from layer_sizes import EXPERTS, LEARNING_RATE

import t2tp
from t2tp import mtf
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import RoutingConfig
from t2tp.layers.mixture_of_experts import MixtureOfExperts

sizes = EXPERTS[args.size]
routing = RoutingConfig(sizes.experts, "top_2", capacity_factor_train=sizes.capacity_factor)
experts = MixtureOfExperts(routing, FeedForward("relu", sizes.d_ff))
feature = t2tp.Feature(f"batch:{sizes.batch};length:{sizes.length};d_model:{sizes.d_model}")


def step_fn(mesh, features):
    y, _ = experts(features["inputs"], training=True)
    loss = mtf.reduce_mean(mtf.square(y - features["targets"]))
    variables = mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    for variable, gradient in zip(variables, gradients, strict=True):
        mtf.assign_sub(variable, LEARNING_RATE * gradient)
    return {"loss": loss}


program = t2tp.Program(
    step_fn,
    {"inputs": feature, "targets": feature},
    mesh_shape=f"data:{args.data};model:{args.model}",
    layout="batch:data;experts:data;d_ff:model",
    xla=args.xla or None,
)
names = {"router": "router", "up": "input", "down": "output"}
for name, value in sizes.initial_values().items():
    variable = program.variables[names[name]]
    for pnum in program.cluster.local_pnums:
        part = value[program.layout.slices(variable.spec.shape, pnum)]
        variable.slice_of(pnum).assign(part)
batch = program.place(dict(zip(("inputs", "targets"), sizes.data(), strict=True)))
turn.take_turns(lambda: float(program(batch)["loss"]), version=f"tensorflow {tf.__version__}")
