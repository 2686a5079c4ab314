"""Steps that cannot work are refused with a reason.

TensorFlow tensors in a step are imported, like the features in a `model_fn` for Estimator.
"""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf

X = np.arange(16, dtype=np.float32).reshape(4, 4)
FEATURES = {"x": t2tp.Feature("batch:4;d:4")}


def run(step_fn):
    return t2tp.Program(step_fn, FEATURES, mesh_shape="m:2", layout="batch:m")({"x": X})


# Name and shape of a variable when a step is built for the n-th time.
CHANGING = [
    (lambda n: (f"w-{n}", "d:4"), r"variable 'w-2' \[d=4\].*is built more than once"),
    (lambda n: ("w", f"n:{n}"), r"'w' \[n=2\].*then it was \[n=1\]"),
]


@pytest.mark.parametrize(("variable", "said"), CHANGING)
def test_variables_that_change_are_refused(variable, said):
    count = itertools.count(1)

    def step(mesh, features):
        name, shape = variable(next(count))
        return {"y": mtf.get_variable(mesh, name, mtf.convert_to_shape(shape))}

    with pytest.raises(ValueError, match=said):
        run(step)


REFUSED = [
    ({"loss": None}, "output 'loss' is None.*mtf.gradients gives None"),
    ({"loss": 1.0}, "output 'loss' is float, and must be an mtf tensor"),
    (None, "by name.*this one returned None"),
]


@pytest.mark.parametrize(("returned", "said"), REFUSED)
def test_what_is_no_output_is_refused_by_its_name(returned, said):
    with pytest.raises(TypeError, match=said):
        run(lambda mesh, features: returned)


@pytest.mark.parametrize("function", [tf.tanh, lambda x: tf.reshape(x, [16])])
def test_a_function_of_tensorflows_on_an_mtf_tensor_says_what_to_do(function):
    with pytest.raises(TypeError, match=r"'x' is an mtf tensor.*mtf.slicewise\(tf_fn, \[x\]"):
        run(lambda mesh, features: {"y": function(features["x"])})


def test_features_are_imported_as_in_a_model_fn():
    rows, columns = mtf.Dimension("rows", 4), mtf.Dimension("columns", 4)

    def step(mesh, features):
        x = mtf.import_tf_tensor(mesh, features["x"], mtf.Shape([rows, columns]))
        y = mtf.import_fully_replicated(mesh, features["x"], mtf.Shape([rows, columns]), name="y")
        z = mtf.import_tf_tensor(mesh, X, "rows:4;columns:4")
        same = mtf.import_tf_tensor(mesh, features["x"])
        assert same is features["x"]
        return {"columns": mtf.reduce_sum(x, reduced_dim=rows), "zero": x + y - 2.0 * z}

    values = run(step)
    np.testing.assert_array_equal(values["columns"], X.sum(0))
    assert not values["zero"].any()


def test_features_of_other_sizes_are_not_imported():
    wanted = re.escape("[batch=4, d=4] already, and Shape[batch=4, d=5] has other sizes")
    with pytest.raises(ValueError, match=wanted):
        run(lambda mesh, f: {"y": mtf.import_tf_tensor(mesh, f["x"], "batch:4;d:5")})


def test_a_variable_is_set_to_a_whole_value():
    def step(mesh, features):
        return {"w": mtf.get_variable(mesh, "w", features["x"].shape) + 0.0}

    program = t2tp.Program(step, FEATURES, mesh_shape="m:2", layout="batch:m")
    program.variables["w"].assign(X)
    np.testing.assert_array_equal(program({"x": X})["w"], X)
    np.testing.assert_array_equal(program.variables["w"].numpy(), X)
    with pytest.raises(ValueError, match=r"'w' is \[batch=4, d=4\].*of shape \[4\]"):
        program.variables["w"].assign(X[0])
