"""Learning-rate schedules: the formulas, step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest

import t2tp
from t2tp import registry
from t2tp.optim.schedules import learning_rate
from tests.optim.regression import make_hparams

TRAIN_STEPS = 1000
WARMUP = 100
STEPS = [0, 1, 50, 98, 99, 100, 101, 500, 799, 800, 801, 998, 999, 1000, 1500]


def warmup(step):
    """tensor2tensor divides the step itself, so that its first step is lost at a rate of 0."""
    return min(1.0, (step + 1) / WARMUP)


def rsqrt(step):
    return max(step, WARMUP) ** -0.5


def linear(step, over):
    return min(1.0, max(0.0, (TRAIN_STEPS - step) / over))


def cosine(step, over):
    return (1 + math.cos(math.pi * min(step, over) / over)) / 2


# Schedule, learning_rate_decay_steps, formula.
CASES = [
    ("constant", 0, lambda step: 2.0),
    ("linear_warmup", 0, warmup),
    ("rsqrt_decay", 0, rsqrt),
    ("linear_decay", 0, lambda step: linear(step, TRAIN_STEPS)),
    ("linear_decay", 200, lambda step: linear(step, 200)),
    ("cosine_decay", 0, lambda step: cosine(step, TRAIN_STEPS)),
    ("cosine_decay", 800, lambda step: cosine(step, 800)),
    ("constant*linear_warmup * rsqrt_decay", 0, lambda step: 2 * warmup(step) * rsqrt(step)),
]


def rates(schedule, **hparams):
    hparams = make_hparams(learning_rate_schedule=schedule, learning_rate_constant=2.0, **hparams)
    program = t2tp.Program(lambda mesh, _: {"rate": learning_rate(mesh.step, hparams, TRAIN_STEPS)})
    return [float(program(step=step)["rate"]) for step in STEPS]


@pytest.mark.parametrize(("schedule", "decay_steps", "formula"), CASES)
def test_each_step_has_the_formulas_rate(schedule, decay_steps, formula):
    ours = rates(schedule, learning_rate_warmup_steps=WARMUP, learning_rate_decay_steps=decay_steps)
    np.testing.assert_allclose(ours, [formula(step) for step in STEPS], rtol=1e-5, atol=1e-7)


def test_without_warmup_steps_the_first_rate_is_whole():
    wanted = [max(step, 1) ** -0.5 for step in STEPS]
    ours = rates("linear_warmup*rsqrt_decay", learning_rate_warmup_steps=0)
    np.testing.assert_allclose(ours, wanted, rtol=1e-5)


def test_every_registered_schedule_is_tested_here():
    tested = {factor.strip() for schedule, *_ in CASES for factor in schedule.split("*")}
    assert tested == set(registry.list_learning_rate_schedules())


def test_an_unknown_factor_names_the_nearest():
    with pytest.raises(registry.UnknownNameError, match="'linear_warmpu'.*linear_warmup"):
        rates("constant*linear_warmpu")
