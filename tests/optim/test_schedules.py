"""Learning-rate schedules match their formulas at each step."""

import math

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import registry
from t2tp.optim.schedules import learning_rate
from tests.optim.regression import make_hparams

TRAIN_STEPS = 1000
WARMUP = 100
STEPS = [0, 1, 50, 98, 99, 100, 101, 500, 799, 800, 801, 998, 999, 1000, 1500]
PIECES = {"boundaries": [50, 800], "multiples": [0.5, 0.1]}
HALVED = {"decay_steps": 300, "decay_rate": 0.5}


def warmup(step):
    """tensor2tensor divides `step` itself, so its first step has a rate of 0 and is lost."""
    return min(1.0, (step + 1) / WARMUP)


def rsqrt(step):
    return max(step, WARMUP) ** -0.5


def linear(step, over):
    return min(1.0, max(0.0, (TRAIN_STEPS - step) / over))


def cosine(step, over):
    return (1 + math.cos(math.pi * min(step, over) / over)) / 2


def after_warmup(step):
    return max(step - WARMUP, 0)


# Schedule, hparams `learning_rate_...` that it reads besides the warm-up's, and its formula
# (tensor2tensor's if the factor exists there).
CASES = [
    ("constant", {}, lambda step: 2.0),
    ("linear_warmup", {}, warmup),
    ("rsqrt_decay", {}, rsqrt),
    ("rsqrt_normalized_decay", {}, lambda step: 10 * rsqrt(step)),
    ("rsqrt_hidden_size", {}, lambda step: 1 / 8),
    ("relative_step", {}, lambda step: min(0.01, (step + 1) ** -0.5)),
    ("linear_decay", {}, lambda step: linear(step, TRAIN_STEPS)),
    ("linear_decay", {"decay_steps": 200}, lambda step: linear(step, 200)),
    ("linear_decay", {"decay_fraction": 0.2}, lambda step: linear(step, 200)),
    (
        *("linear_decay", {"decay_steps": 200, "decay_floor": 0.1}),
        lambda step: 0.1 + 0.9 * linear(step, 200),
    ),
    ("sqrt_decay", {"decay_steps": 200}, lambda step: 1 - math.sqrt(1 - linear(step, 200))),
    ("cosine_decay", {}, lambda step: cosine(step, TRAIN_STEPS)),
    ("cosine_decay", {"decay_steps": 800}, lambda step: cosine(step, 800)),
    ("cosine_decay", {"decay_floor": 0.25}, lambda step: 0.25 + 0.75 * cosine(step, TRAIN_STEPS)),
    (
        *("cosdecay", {"decay_steps": 800}),
        lambda step: 1.0 if step <= WARMUP else (1 + math.cos(math.pi * step / 800)) / 2,
    ),
    ("single_cycle_cos_decay", {}, lambda step: cosine(after_warmup(step), 900)),
    (
        *("multi_cycle_cos_decay", {"decay_steps": 300}),
        lambda step: (1 + math.cos(math.pi * after_warmup(step) / 300)) / 2,
    ),
    ("exp_decay", HALVED, lambda step: 0.5 ** (after_warmup(step) / 300)),
    (
        *("exp_decay", {**HALVED, "decay_staircase": True}),
        lambda step: 0.5 ** (after_warmup(step) // 300),
    ),
    ("piecewise", PIECES, lambda step: 1.0 if step <= 50 else 0.5 if step <= 800 else 0.1),
    ("constant*linear_warmup * rsqrt_decay", {}, lambda step: 2 * warmup(step) * rsqrt(step)),
]


def hparams_of(**values):
    rates = {"constant": 2.0, "warmup_steps": WARMUP, **values}
    hparams = make_hparams(**{f"learning_rate_{name}": value for name, value in rates.items()})
    hparams.add("d_model", 64)
    return hparams


def rates(schedule, steps=STEPS, train_steps=TRAIN_STEPS, **values):
    hparams = hparams_of(schedule=schedule, **values)
    program = t2tp.Program(lambda mesh, _: {"rate": learning_rate(mesh.step, hparams, train_steps)})
    return [float(program(step=step)["rate"]) for step in steps]


def test_a_program_has_the_rate_of_each_step():
    schedule, _, formula = CASES[-1]
    np.testing.assert_allclose(rates(schedule), [formula(step) for step in STEPS], rtol=1e-6)


@pytest.mark.parametrize(("schedule", "values", "formula"), CASES)
def test_float32_has_no_cancellation(schedule, values, formula):
    """Each rate has a small relative error, up to the last step."""
    hparams = hparams_of(**values)
    for step in STEPS if schedule == "piecewise" else sorted({*STEPS, *range(0, 1501, 20)}):
        now, ours = tf.constant(step, tf.float32), 1.0
        for factor in schedule.split("*"):
            ours *= registry.learning_rate_schedule(factor.strip())(now, hparams, TRAIN_STEPS)
        assert float(ours) == pytest.approx(formula(step), rel=2e-6, abs=1e-15), step


def test_without_warmup_steps_the_first_rate_is_whole():
    wanted = [max(step, 1) ** -0.5 for step in STEPS]
    ours = rates("linear_warmup*rsqrt_decay", warmup_steps=0)
    np.testing.assert_allclose(ours, wanted, rtol=1e-5)


LAST_RATES = [
    ("linear_decay", lambda left, over: left / over),
    ("cosine_decay", lambda left, over: math.sin(math.pi / 2 * left / over) ** 2),
    ("single_cycle_cos_decay", lambda left, over: math.sin(math.pi / 2 * left / over) ** 2),
]


@pytest.mark.parametrize("train_steps", [1_000_000, 16_000_000])
@pytest.mark.parametrize(("schedule", "formula"), LAST_RATES)
def test_the_last_rates_of_a_long_training_are_exact(schedule, formula, train_steps):
    lefts = [3, 2, 1, 0]
    ours = rates(schedule, [train_steps - left for left in lefts], train_steps, warmup_steps=0)
    np.testing.assert_allclose(ours, [formula(left, train_steps) for left in lefts], rtol=1e-5)


def test_every_registered_schedule_is_tested_here():
    tested = {factor.strip() for schedule, *_ in CASES for factor in schedule.split("*")}
    assert tested == set(registry.list_learning_rate_schedules())


def test_an_unknown_factor_names_the_nearest():
    with pytest.raises(registry.UnknownNameError, match="'linear_warmpu'.*linear_warmup"):
        rates("constant*linear_warmpu")


@pytest.mark.parametrize("schedule", ["cosdecay", "multi_cycle_cos_decay", "exp_decay"])
def test_decays_that_need_a_length_say_so(schedule):
    with pytest.raises(ValueError, match=f"{schedule} needs learning_rate_decay_steps"):
        rates(schedule)


@pytest.mark.parametrize(("warmup", "spent"), [(500, 500), (501, 100), (2000, 100)])
def test_a_warmup_of_more_than_half_of_the_training_takes_a_tenth(warmup, spent):
    rising = rates("linear_warmup", [0, spent - 2, spent - 1], warmup_steps=warmup)
    np.testing.assert_allclose(rising, [1 / spent, 1 - 1 / spent, 1.0], rtol=1e-6)
    falling = rates("single_cycle_cos_decay", [spent, 999], warmup_steps=warmup)
    assert falling[0] == 1.0 and 0.0 < falling[1] < 1e-4
    assert rates("single_cycle_cos_decay", [0], train_steps=1) == [1.0]
    # rsqrt_decay reads the hparam, and not the shortened warm-up.
    decaying = rates("rsqrt_decay", [spent], warmup_steps=warmup)
    assert decaying[0] == pytest.approx(warmup**-0.5)


WRONG_PIECES = [([1, 2], [0.5]), ([2, 1], [0.5, 0.1]), ([1, 1], [0.5, 0.1])]


@pytest.mark.parametrize(("boundaries", "multiples"), WRONG_PIECES)
def test_pieces_that_do_not_fit_are_refused(boundaries, multiples):
    with pytest.raises(ValueError, match="ascending learning_rate_boundaries"):
        rates("piecewise", boundaries=boundaries, multiples=multiples)
