"""Operations that print, write summaries or wait for others, and bugs of mesh-tensorflow."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from tests.lowering import oracle

A, B = mtf.Dimension("a", 4), mtf.Dimension("b", 6)
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def run(step, mesh_shape="x:2", layout="a:x"):
    features = {"x": (mtf.Shape([A, B]), X)}
    return oracle.program_and_outputs(step, features, mesh_shape, layout)


def test_depend_on_a_sum_and_of_a_sum_that_are_not_reduced_yet():
    def step(mesh, features):
        total = mtf.reduce_sum(features["x"], reduced_dim=A)
        squares = mtf.reduce_sum(mtf.square(features["x"]), reduced_dim=A)
        y = mtf.depend(squares, [total])
        return {"y": y, "dx": mtf.gradients([y], [features["x"]])[0]}

    program, values = run(step)
    np.testing.assert_allclose(values["y"], np.square(X).sum(0), rtol=1e-5)
    np.testing.assert_allclose(values["dx"], 2 * X, rtol=1e-6)
    ((collective, (_, num_bytes)),) = program.collectives().items()
    assert collective == ("allreduce", ("x",)) and num_bytes == 2 * 6 * 4


def test_depend_on_an_assignment_comes_after_it():
    def step(mesh, features):
        v = mtf.get_variable(mesh, "v", mtf.Shape([A, B]), initializer=tf.zeros_initializer())
        assigned = mtf.assign(v, features["x"])
        (variable,) = mesh.graph.all_variables
        return {"y": mtf.depend(features["x"], [assigned]) - mtf.read_variable(variable)}

    np.testing.assert_array_equal(run(step)[1]["y"], 0)


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:2;y:3", "a:x;b:y")])
def test_print_prints_once_whatever_the_mesh(mesh_shape, layout, capfd):
    def step(mesh, features):
        total = mtf.reduce_sum(features["x"])
        return {"y": mtf.Print(total, [total], "the total is:", summarize=3)}

    _, values = run(step, mesh_shape, layout)
    np.testing.assert_allclose(values["y"], X.sum(), rtol=1e-5)
    printed = [line for line in capfd.readouterr().err.splitlines() if "the total is" in line]
    assert len(printed) == 1
    assert f"{X.sum():.3f}"[:4] in printed[0]


def test_the_gradient_that_tensorflow_finds_is_by_the_input_alone():
    """In mesh-tensorflow, `dy` would also contain the gradient through `doubled`, twice in all."""

    def step(mesh, features):
        x = features["x"]
        doubled = x * 2.0
        y = mtf.slicewise(tf.multiply, [x, doubled], splittable_dims=[A, B])
        z = mtf.slicewise(tf.multiply, [x, x], splittable_dims=[A, B])
        sums = mtf.sin(mtf.reduce_sum(x, reduced_dim=A))
        return {
            "dy": mtf.gradients([y], [x])[0],
            "dz": mtf.gradients([z], [x])[0],
            "dsin": mtf.gradients([sums], [x])[0],  # of a sum that is not reduced yet
        }

    _, values = run(step)
    np.testing.assert_allclose(values["dy"], 4 * X, rtol=1e-6)
    np.testing.assert_allclose(values["dz"], 2 * X, rtol=1e-6)
    np.testing.assert_allclose(values["dsin"], np.tile(np.cos(X.sum(0)), (4, 1)), rtol=1e-5)


DTYPES = [
    (tf.float32, tf.float32, tf.float32),
    (tf.bfloat16, tf.float32, tf.bfloat16),
    (tf.float32, tf.float32, tf.bfloat16),
    (tf.bfloat16, tf.bfloat16, tf.float32),
    (tf.float16, tf.float32, tf.float16),
    (tf.float32, tf.float64, tf.float32),
    (tf.int32, tf.int32, tf.int32),
    (tf.int64, tf.int32, tf.float32),
]


@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: "-".join(t.name for t in d))
def test_variables_of_any_three_dtypes(dtypes):
    _, held, seen = dtypes

    def step(mesh, features):
        v = mtf.get_variable(
            mesh,
            "v",
            mtf.Shape([A, B]),
            dtype=mtf.VariableDType(*dtypes),
            initializer=tf.ones_initializer(),
        )
        assert v.dtype == seen
        mtf.assign_add(v, mtf.constant(mesh, 2, v.shape, seen))
        return {"before": v}

    program, values = run(step)
    variable = program.variables["v"]
    assert values["before"].dtype == seen.as_numpy_dtype
    assert variable.slices[0].dtype == held
    np.testing.assert_array_equal(values["before"].astype(float), 1)
    np.testing.assert_array_equal(variable.numpy().astype(float), 3)


def test_constants_that_are_arrays_are_cut():
    def step(mesh, features):
        return {"c": mtf.constant(mesh, X, mtf.Shape([A, B]))}

    np.testing.assert_array_equal(run(step)[1]["c"], X)
