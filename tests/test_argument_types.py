"""Arguments of wrong types are answered with one sentence, for every public function."""

import inspect

import numpy as np
import pytest

import t2tp
from t2tp import mtf
from t2tp.argument_types import fits
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_spec import RunSpec

FEATURES = {"x": t2tp.Feature("batch:16;d:8")}
NOT_CALLED = ("Cluster", "HParams", "LayoutError", "Mesh", "Operation", "mtf")
FUNCTIONS = [getattr(t2tp, name) for name in dir(t2tp) if name[0] != "_" and name not in NOT_CALLED]
FUNCTIONS += [RunConfig, RunSpec.resolve, Experiment, Estimator]
WRONG = [5, "x", None, 1.5, [1], {1: 2}, object(), b"x", True]


def valid(function):
    """Returns the required arguments."""
    values = {
        **{"step_fn": len, "shape": "batch:16", "num_processors": 1, "model_fn": len},
        **{"program": t2tp.Program(lambda mesh, features: features, FEATURES)},
        **{"directory": "run", "step": 1, "train_steps": 1, "cluster": "cpu", "vocab_size": 8},
        **{"model": "mlp", "problem": "x", "hparams": t2tp.HParams(), "data_dir": "data"},
        **{"output_dir": "run", "config": RunConfig("run"), "spec": object.__new__(RunSpec)},
    }
    parameters = inspect.signature(function).parameters.values()
    return {p.name: values[p.name] for p in parameters if p.default is p.empty}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_a_wrong_type_is_one_sentence_that_names_the_argument(function):
    names, rejected = vars(inspect.getmodule(inspect.unwrap(function))), 0
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        hint = eval(hint, names) if isinstance(hint, str) else hint
        for value in [each for each in WRONG if not fits(each, hint)]:
            with pytest.raises(TypeError) as caught:
                function(**{**valid(function), name: value})
            said = str(caught.value)
            assert f": {name} is " in said and ", and must be " in said and "\n" not in said
            rejected += 1
    assert rejected > 0
    with pytest.raises(TypeError, match="has no argument 'nonsense'"):
        function(nonsense=1)


def program(step):
    return t2tp.Program(lambda mesh, features: {"y": step(features["x"])}, FEATURES)


ARRAY = np.ones((16, 8), np.float32)
GRAPHS = {
    "array on the right": (lambda: program(lambda x: x + ARRAY), "ndarray, whose dimensions have"),
    "array on the left": (lambda: program(lambda x: ARRAY * x), "ndarray, whose dimensions have"),
    "list": (lambda: program(lambda x: x - [1.0, 2.0]), "list, whose dimensions have"),
    "condition": (lambda: program(lambda x: x if x > 0 else -x), "compare by mtf.greater"),
    "shape of numbers": (lambda: mtf.Shape([3, 4]), "3 is not a dimension"),
    "feature of numbers": (lambda: t2tp.Feature((16, 8)), "16 is not a dimension"),
    "array as a feature": (
        lambda: t2tp.Program(lambda mesh, features: {}, {"x": ARRAY}),
        "feature 'x' is a ndarray, and must be a t2tp.Feature",
    ),
}


@pytest.mark.parametrize(("call", "words"), GRAPHS.values(), ids=GRAPHS)
def test_a_wrong_operand_is_one_sentence(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_no_processors_are_refused_and_later_calls_work():
    with pytest.raises(ValueError, match="num_processors is 0, and must be at least 1"):
        t2tp.connect(0)
    assert len(t2tp.connect(1).devices) == 1


def test_mesh_and_layout_may_be_dictionaries():
    text = t2tp.Layout("data:2;model:2", "batch:data+model;d:model")
    shape, rules = {"data": 2, "model": 2}, {"batch": ["data", "model"], "d": "model"}
    assert repr(t2tp.Layout(shape, rules)) == repr(text)
    doubled = t2tp.Program(
        lambda mesh, features: {"y": features["x"] * 2.0},
        FEATURES,
        mesh_shape={"data": 2},
        layout={"batch": "data"},
    )
    np.testing.assert_array_equal(doubled({"x": ARRAY})["y"], 2 * ARRAY)
