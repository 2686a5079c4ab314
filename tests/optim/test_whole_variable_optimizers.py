"""Adam and Adafactor match the papers' formulas in float64; Adafactor needs whole variables."""

import functools

import numpy as np
import pytest

from tests.optim import quadratic
from tests.optim.regression import assert_close, make_hparams

RATE = 0.02
LAID_OUT = [
    ("", ""),
    ("data:2;model:2", "d_in:data;d_ff:model"),
    ("data:2;model:2", "d_ff:data;heads:model"),
    ("all:4", "d_in:all"),
]


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def adam(name, step, value, grad, state):
    """Computes algorithm 1 of arXiv:1412.6980, with an epsilon that is large enough to matter."""
    beta1, beta2, epsilon = 0.9, 0.98, 0.1
    m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * grad
    v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * grad**2
    mean = m / (1 - beta1 ** (step + 1))
    return value - RATE * mean / (np.sqrt(v / (1 - beta2 ** (step + 1))) + epsilon)


# Factored variable -> the axes along which row and column means are taken.
FACTORED = {"matrix": (0, 1), "cube": (0, 2)}


def adafactor(
    name, step, value, grad, state, beta1=0.0, clipping=1.0, scaled=True, factored=True, decay=0.0
):
    """Computes algorithms 4 and 5 of arXiv:1804.04235."""
    rest = 1 - (step + 1.0) ** -0.8
    squares = grad**2 + 1e-30
    if factored and name in FACTORED:
        first, second = FACTORED[name]
        for axis in (first, second):
            mean = squares.mean(axis, keepdims=True)
            state[axis] = rest * state.get(axis, 0.0) + (1 - rest) * mean
        moments = state[first] * state[second] / state[second].mean(first, keepdims=True)
    else:
        moments = state["v"] = rest * state.get("v", 0.0) + (1 - rest) * squares
    update = grad / np.sqrt(moments)
    if clipping:
        update = update / max(1.0, rms(update) / clipping)
    update = update * RATE * (max(rms(value), 1e-3) if scaled else 1.0)
    if beta1:
        update = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * update
    return value - (RATE * decay * value if value.ndim > 1 else 0.0) - update


CASES = {
    "adam": (adam, {"optimizer": "adam", "optimizer_adam_epsilon": 0.1}),
    "adafactor": (adafactor, {"optimizer": "adafactor"}),
    "adafactor with all it can": (
        functools.partial(adafactor, beta1=0.9, clipping=0.7, decay=0.3),
        {
            "optimizer": "adafactor",
            "optimizer_adafactor_beta1": 0.9,
            "optimizer_adafactor_clipping_threshold": 0.7,
            "weight_decay": 0.3,
        },
    ),
    "adafactor with nothing": (
        functools.partial(adafactor, clipping=0.0, scaled=False, factored=False),
        {
            "optimizer": "adafactor",
            "optimizer_adafactor_clipping_threshold": 0.0,
            "optimizer_adafactor_multiply_by_parameter_scale": False,
            "optimizer_adafactor_factored": False,
        },
    ),
}


@functools.cache
def in_float64(name):
    return quadratic.descend_by(CASES[name][0])


@functools.cache
def ours(name, mesh_shape, layout):
    hparams = make_hparams(learning_rate_constant=RATE, **CASES[name][1])
    program = quadratic.descend(hparams, mesh_shape, layout)
    return {each: program.variables[each].numpy() for each in quadratic.SHAPES}


@pytest.mark.parametrize(("mesh_shape", "layout"), LAID_OUT)
@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_the_formula(name, mesh_shape, layout):
    for wanted in in_float64(name).values():
        start = quadratic.initial_value(wanted.shape).numpy()
        assert np.abs(wanted - start).max() > 0.1
    assert_close(ours(name, mesh_shape, layout), in_float64(name), 2e-5, 2e-6)
    assert_close(ours(name, mesh_shape, layout), ours(name, "", ""), 2e-6, 1e-6)


def test_sums_of_variables_that_are_split_alike_are_made_together():
    """Adafactor adds two all-reduces per axis: for all means, and for the norms of all updates."""

    def reductions(**values):
        layout = LAID_OUT[1]
        made = quadratic.descend(make_hparams(**values), *layout).collectives()
        return {axes: count for (_, axes), (count, _) in made.items()}

    without = reductions(optimizer="sgd", learning_rate_constant=1e-3)
    assert len(without) == 3
    wanted = {axes: count + 2 for axes, count in without.items()}
    assert reductions(optimizer="adafactor") == wanted


def test_slots_of_a_factored_variable_are_its_means():
    hparams = make_hparams(optimizer="adafactor")
    variables = quadratic.descend(hparams, "", "").variables
    sizes = {v.spec.name: v.spec.shape.to_integer_list for v in variables}
    kept = {name: size for name, size in sizes.items() if "/" in name}
    assert kept == {
        "matrix/adafactor_vr": [160],
        "matrix/adafactor_vc": [128],
        "cube/adafactor_vr": [160, 4],
        "cube/adafactor_vc": [4, 128],
        "thin/adafactor_v": [128, 6],
        "vector/adafactor_v": [160],
    }
