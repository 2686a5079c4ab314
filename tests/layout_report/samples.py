"""Programs to explain in reports."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf
from t2tp.ops.variables.zero_weights import gradients_at_rest
from t2tp.optim.gradient_accumulation import accumulate
from t2tp.optim.loss import LossOutput, LossTerm
from t2tp.program.abstract_program import AbstractProgram

BATCH = mtf.Dimension("batch", 8)
D_MODEL = mtf.Dimension("d_model", 6)
D_FF = mtf.Dimension("d_ff", 12)
MESH, LAYOUT = "data:2;model:2", "batch:data;d_ff:model"


def perceptron(x):
    """Returns the output of a perceptron, [batch, d_model] -> [batch, d_model]."""
    w_in = mtf.get_variable(x.mesh, "w_in", mtf.Shape([D_MODEL, D_FF]))
    w_out = mtf.get_variable(x.mesh, "w_out", mtf.Shape([D_FF, D_MODEL]))
    h = mtf.relu(mtf.einsum([x, w_in], output_shape=[x.shape.dims[0], D_FF]))
    return mtf.einsum([h, w_out], output_shape=x.shape)


def mlp_step(mesh, features):
    """Trains a perceptron by gradient descent with momentum."""
    x = features["x"]
    loss = mtf.reduce_mean(mtf.square(perceptron(x) - x))
    variables = mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.value for v in variables])
    gradients = gradients_at_rest(gradients, variables)
    for variable, gradient in zip(variables, gradients, strict=True):
        shape = variable.shape
        slot = mtf.get_variable(mesh, f"{variable.name}/m", shape, trainable=False)
        mtf.assign(slot.operation, 0.9 * slot + gradient)
        mtf.assign_sub(variable, 0.1 * gradient)
    return {"loss": loss}


MLP_FEATURES = {"x": t2tp.Feature(mtf.Shape([BATCH, D_MODEL]))}


def mlp(mesh_shape: str = MESH, layout: str = LAYOUT) -> AbstractProgram:
    """Returns the abstract program that trains the perceptron."""
    return AbstractProgram(mlp_step, MLP_FEATURES, mesh_shape=mesh_shape, layout=layout)


def layers(count: int, mesh_shape: str = MESH, layout: str = LAYOUT) -> AbstractProgram:
    """Returns a program of identical layers, each with two variables and a residual connection."""

    def step(mesh, features):
        x = features["x"]
        for layer in range(count):
            with tf1.variable_scope(f"layer_{layer}"):
                x += perceptron(x)
        return {"y": x}

    return AbstractProgram(step, MLP_FEATURES, mesh_shape=mesh_shape, layout=layout)


def microbatches(count: int) -> AbstractProgram:
    """Returns a program that sums the perceptron's gradients over microbatches."""

    def loss_fn(features):
        x = features["x"]
        weight = mtf.constant(x.mesh, float(x.shape.dims[0].size))
        error = mtf.reduce_sum(mtf.square(perceptron(x) - x))
        return LossOutput({"error": LossTerm(error, weight)})

    def step(mesh, features):
        accumulated = accumulate(loss_fn, features, count, mesh)
        variables = mesh.graph.trainable_variables
        for variable, gradient in zip(variables, accumulated.gradients, strict=True):
            mtf.assign_sub(variable, 0.1 * gradient)
        return {"loss": accumulated.loss}

    return AbstractProgram(step, MLP_FEATURES, mesh_shape=MESH, layout=LAYOUT)


def loop() -> AbstractProgram:
    """Returns a program that multiplies x by split variables three times, in a loop."""

    def step(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([D_FF, D_MODEL]))
        back = mtf.get_variable(mesh, "back", mtf.Shape([D_MODEL, D_FF]))

        def body(i, x):
            y = mtf.einsum([x, w], output_shape=[BATCH, D_MODEL])
            return i + 1, mtf.einsum([y, back], output_shape=[BATCH, D_FF])

        start = [mtf.zeros(mesh, mtf.Shape([]), dtype=tf.int32), features["x"]]
        _, x = mtf.while_loop(lambda i, x: mtf.less(i, 3), body, start)
        return {"x": x}

    features = {"x": t2tp.Feature(mtf.Shape([BATCH, D_FF]))}
    return AbstractProgram(step, features, mesh_shape=MESH, layout=LAYOUT)
