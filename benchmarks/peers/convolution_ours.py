"""A convolution block in t2tp: its layers, trained by gradient descent.

--data splits the batch; --model splits the height of the images.
"""

from __future__ import annotations

import turn

args = turn.arguments()

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from layer_sizes import CONVOLUTIONS, EPSILON, LEARNING_RATE, MOMENTUM

import t2tp
from t2tp import mtf
from t2tp.layers.convolution import Convolution, batch_norm

block = CONVOLUTIONS[args.size]
channels = mtf.Dimension("channels", block.channels)
feature = t2tp.Feature(
    f"batch:{block.batch};height:{block.height};width:{block.width};channels:{block.channels}"
)


def normalized_convolution(x, number):
    with tf1.variable_scope(f"conv_{number}"):
        return batch_norm(Convolution(channels, 3)(x), True, MOMENTUM, EPSILON)


def step_fn(mesh, features):
    x = features["inputs"]
    y = mtf.relu(normalized_convolution(x, 1))
    y = mtf.relu(x + normalized_convolution(y, 2))
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
    layout="batch:data;height:model",
    xla=args.xla or None,
)
for name, value in block.initial_values().items():
    variable = program.variables[f"{name}/filters"]
    for pnum in program.cluster.local_pnums:
        part = value[program.layout.slices(variable.spec.shape, pnum)]
        variable.slice_of(pnum).assign(part)
batch = program.place(dict(zip(("inputs", "targets"), block.data(), strict=True)))
turn.take_turns(lambda: float(program(batch)["loss"]), version=f"tensorflow {tf.__version__}")
