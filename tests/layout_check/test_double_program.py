"""A float64 program is accurate to 15 digits, whatever the dtypes of its tensors."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.layout_check.double_program import DoubleProgram

BATCH, D = mtf.Dimension("batch", 8), mtf.Dimension("d", 6)
# float32 values, because programs are fed float32.
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32).astype(np.float64)


def run(step_fn, mesh_shape="x:2", layout="batch:x") -> np.ndarray:
    features = {"x": t2tp.Feature(mtf.Shape([BATCH, D]))}
    program = DoubleProgram(step_fn, features, mesh_shape=mesh_shape, layout=layout)
    return program({"x": X})["y"]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16], ids=lambda d: d.name)
def test_narrow_dtypes_do_not_round(dtype):
    def step_fn(mesh, features):
        x = mtf.cast(features["x"], dtype)
        return {"y": mtf.cast(mtf.reduce_sum(mtf.exp(x) * x, reduced_dim=BATCH), tf.float32)}

    np.testing.assert_allclose(run(step_fn), (np.exp(X) * X).sum(0), rtol=1e-14)


def test_loops_do_not_round():
    def step_fn(mesh, features):
        start = [mtf.constant(mesh, 0, dtype=tf.int32), features["x"]]
        body = lambda i, x: [i + 1, mtf.sin(x) + mtf.reduce_mean(x, reduced_dim=BATCH)]  # noqa: E731
        return {"y": mtf.while_loop(lambda i, x: mtf.less(i, 3), body, start)[1]}

    wanted = X
    for _ in range(3):
        wanted = np.sin(wanted) + wanted.mean(0)
    np.testing.assert_allclose(run(step_fn), wanted, rtol=1e-13)


def test_variables_are_updated_in_float64():
    def step_fn(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([D]), initializer=tf.ones_initializer())
        update = mtf.reduce_sum(mtf.square(features["x"]), reduced_dim=BATCH)
        mtf.assign_add(w, update)
        return {"y": update}

    features = {"x": t2tp.Feature(mtf.Shape([BATCH, D]))}
    program = DoubleProgram(step_fn, features, mesh_shape="x:2", layout="d:x")
    for step in range(2):
        program({"x": X}, step=step)
    (variable,) = program.variables
    halves = [program.value_of(variable, pnum) for pnum in range(2)]
    np.testing.assert_allclose(np.concatenate(halves), 1 + 2 * (X**2).sum(0), rtol=1e-14)
