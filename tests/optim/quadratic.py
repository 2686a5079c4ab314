"""Minimizes a sum of squares with our optimizers on a mesh, and with formulas in float64."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.optim import apply_gradients

STEPS = 20
HEADS, ROWS, COLUMNS, FEW = (
    mtf.Dimension(name, size)
    for name, size in (("heads", 4), ("d_in", 128), ("d_ff", 160), ("few", 6))
)
# Two variables large enough to be factored (one has a third dimension), a small one, and a vector.
SHAPES = {
    "matrix": [ROWS, COLUMNS],
    "cube": [COLUMNS, HEADS, ROWS],
    "thin": [ROWS, FEW],
    "vector": [COLUMNS],
}

# (name, step, variable, gradient, state) -> the variable's next value; each variable has its own
# state.
Formula = Callable[[str, int, np.ndarray, np.ndarray, dict], np.ndarray]


def initial_value(shape, dtype=tf.float32, partition_info=None):
    """Returns numbers whose sizes differ between rows and between columns."""
    return tf.cast(_numbers(shape, 0.3), dtype)


def _numbers(shape: list[int], frequency: float) -> np.ndarray:
    flat = 1.0 + np.sin(frequency * np.arange(1.0, np.prod(shape) + 1))
    rows = 1.0 + np.arange(shape[0]).reshape([-1] + [1] * (len(shape) - 1)) / shape[0]
    return (0.1 + flat.reshape(shape) * rows).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    """Returns the weights of the squares."""
    return {n: _numbers(mtf.Shape(dims).to_integer_list, 1.0) for n, dims in SHAPES.items()}


def descend(hparams: HParams, mesh_shape: str, layout: str) -> t2tp.Program:
    """Returns a program after 20 steps with our optimizer."""

    def step(mesh, features):
        loss = mtf.constant(mesh, 0.0, dtype=tf.float32)
        for name, value in weights().items():
            shape = mtf.Shape(SHAPES[name])
            var = mtf.get_variable(mesh, name, shape, initializer=initial_value)
            weight = mtf.import_tf_tensor(mesh, value, shape=shape)
            loss += mtf.reduce_sum(weight * mtf.square(var))
        return apply_gradients(loss, mesh, hparams, STEPS)

    program = t2tp.Program(step, mesh_shape=mesh_shape, layout=layout)
    for k in range(STEPS):
        program(step=k)
    return program


def descend_by(formula: Formula) -> dict[str, np.ndarray]:
    """Returns each variable after 20 steps of a formula."""
    values = {}
    for name, weight in weights().items():
        value = np.float64(initial_value(mtf.Shape(SHAPES[name]).to_integer_list).numpy())
        state: dict = {}
        for k in range(STEPS):
            value = formula(name, k, value, 2.0 * np.float64(weight) * value, state)
        values[name] = value
    return values
