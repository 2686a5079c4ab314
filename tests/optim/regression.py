"""A small regression, trained by our optimizers on a mesh and by Keras's on one device."""

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.hparams.base import base_hparams
from t2tp.optim import apply_gradients

STEPS = 20
LAYOUT = "batch:data;d_ff:model"
BATCH, D_IN, D_FF = mtf.Dimension("batch", 8), mtf.Dimension("d_in", 6), mtf.Dimension("d_ff", 12)
SHAPES = {"w": [D_IN, D_FF], "scale": [D_FF], "v": [D_FF, D_IN]}
X = np.random.default_rng(0).normal(size=(STEPS, 8, 6)).astype(np.float32)


def initial_value(shape, dtype=tf.float32, partition_info=None):
    """Initializes a variable; t2tp, Keras and PyTorch can all call it."""
    return tf.cast(tf.reshape(tf.sin(tf.range(np.prod(shape), dtype=tf.float32)), shape), dtype)


def make_hparams(**values: object) -> HParams:
    """Returns hparams with a constant learning rate of 0.01 and no clipping."""
    constant = {"learning_rate_schedule": "constant", "learning_rate_constant": 0.01}
    hparams = base_hparams()
    for name, value in {**constant, "clip_grad_norm": 0.0, **values}.items():
        hparams.set(name, value)
    return hparams


def assert_close(found, wanted, rtol, atol=0.0):
    """Checks each array of `wanted`."""
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol, atol, err_msg=name)


def loss_of(mesh: mtf.Mesh, x: mtf.Tensor, dtype: tf.DType = tf.float32) -> mtf.Tensor:
    """Returns the mean square error of reconstructing x."""
    w, scale, v = (
        mtf.get_variable(
            mesh,
            name,
            mtf.Shape(dims),
            dtype=mtf.VariableDType(dtype, dtype, tf.float32),
            initializer=initial_value,
            role=mtf.Role("matrix", dims[:1], dims[1:]) if len(dims) > 1 else None,
        )
        for name, dims in SHAPES.items()
    )
    hidden = mtf.tanh(mtf.einsum([x, w], [BATCH, D_FF])) * scale
    return mtf.reduce_mean(mtf.square(mtf.einsum([hidden, v], [BATCH, D_IN]) - x))


def train(hparams, mesh_shape, layout=LAYOUT, dtype=tf.float32, xla=None):
    """Trains for 20 steps; returns each step's `loss`, and the variables, which have `dtype`."""

    def step(mesh, features):
        loss = loss_of(mesh, features["x"], dtype)
        return {"loss": loss} | apply_gradients(loss, mesh, hparams, STEPS)

    features = {"x": t2tp.Feature(mtf.Shape([BATCH, D_IN]))}
    program = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout, xla=xla)
    losses = [program({"x": X[k]}, step=k)["loss"] for k in range(STEPS)]
    return {"loss": np.array(losses)} | {name: program.variables[name].numpy() for name in SHAPES}


def train_with_keras(optimizer, undecayed):
    """Trains as `train` does, with a Keras optimizer that does not decay `undecayed`."""
    variables = {
        name: tf.Variable(initial_value(mtf.Shape(dims).to_integer_list), name=name)
        for name, dims in SHAPES.items()
    }
    if undecayed:
        optimizer.exclude_from_weight_decay(var_list=[variables[name] for name in undecayed])
    losses = []
    for x in X:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ variables["w"]) * variables["scale"]
            loss = tf.reduce_mean((hidden @ variables["v"] - x) ** 2)
        trained = list(variables.values())
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        losses.append(loss.numpy())
    return {"loss": np.array(losses)} | {name: v.numpy() for name, v in variables.items()}
