"""Skipped steps, averages of weights, and the search for the first non-finite number."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.optim import apply_gradients, read_averages
from t2tp.optim.nonfinite import first_nonfinite, largest_magnitudes
from tests.optim.regression import assert_close, make_hparams

A = mtf.Dimension("a", 4)
MESHES = ["", "data:2"]


def program_of(step, mesh_shape, **options):
    features = {"x": t2tp.Feature("a:4")}
    if mesh_shape == "xla":
        mesh_shape, options = "", {**options, "xla": True}
    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout="a:data", **options)


def make_weight(mesh):
    return mtf.get_variable(mesh, "w", mtf.Shape([A]), initializer=tf.ones_initializer())


def make_program(mesh_shape="", optimizer="sgd", **values):
    """Returns a program that minimizes the sum of `w * x`, so that the gradient is x."""
    hparams = make_hparams(optimizer=optimizer, learning_rate_constant=1.0, **values)

    def step(mesh, features):
        loss = mtf.reduce_sum(make_weight(mesh) * features["x"])
        return {"loss": loss, **apply_gradients(loss, mesh, hparams, 10)}

    return program_of(step, mesh_shape)


def run(program, gradients):
    """Returns the scalars of each step."""
    shown = []
    for k, gradient in enumerate(gradients):
        outputs = program({"x": np.full(4, gradient, np.float32)}, step=k)
        shown.append({name: float(outputs[name]) for name in outputs})
    return shown


def variables_of(program):
    return {v.spec.name: v.numpy() for v in program.variables}


def test_without_the_guard_it_is_only_reported():
    program = make_program()
    assert run(program, [np.nan])[0]["is_finite"] == 0.0
    assert np.isnan(program.variables["w"].numpy()).all()
    assert {v.spec.name for v in program.variables} == {"w"}


@pytest.mark.parametrize("mesh_shape", [*MESHES, "xla"])
def test_a_spike_is_left_out_and_a_lasting_change_is_not(mesh_shape):
    calm = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.1]
    program = make_program(mesh_shape, skip_step_sigma=6.0, skip_step_window=8)
    assert run(program, calm)[-1]["skipped_steps"] == 0
    before = program.variables["w"].numpy()
    assert run(program, [5.0])[0]["skipped_steps"] == 1
    np.testing.assert_array_equal(program.variables["w"].numpy(), before)
    assert run(program, [1.0])[0]["skipped_steps"] == 1
    np.testing.assert_array_equal(program.variables["w"].numpy(), before - 1.0)
    # The window's deviations are now as large as the jump, so steps are applied again.
    assert run(program, [5.0] * 8)[-1]["skipped_steps"] < 5


def test_nothing_is_a_spike_before_half_the_window_is_known():
    for known, skipped in ((3, 0), (4, 1)):
        program = make_program(skip_step_sigma=3.0, skip_step_window=8)
        assert run(program, [1.0] * known + [50.0])[-1]["skipped_steps"] == skipped


def test_what_is_not_finite_is_not_remembered():
    program = make_program(skip_step_sigma=3.0, skip_step_window=4, on_nonfinite="skip")
    run(program, [1.0, np.nan, 1.0])
    remembered = variables_of(program)
    assert remembered["step_guard/count"] == 2
    np.testing.assert_array_equal(remembered["step_guard/gradient_norms"], [2, 2, 0, 0])


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_averages_of_weights_are_what_an_evaluation_reads(mesh_shape):
    program = make_program(mesh_shape, ema_decay=0.75)
    run(program, [1.0, 2.0, 4.0])
    weights = [0.0, -2.0, -6.0]  # after each step
    wanted = weights[0]
    for weight in weights[1:]:
        wanted = 0.75 * wanted + 0.25 * weight
    np.testing.assert_allclose(program.variables["w/average"].numpy(), np.full(4, wanted))

    def evaluation(mesh, features):
        value = mtf.reduce_sum(make_weight(mesh) * features["x"])
        read_averages(mesh)
        return {"value": value}

    shared = {"cluster": program.cluster, "variables": program.variables}
    evaluate = program_of(evaluation, mesh_shape, **shared)
    assert evaluate({"x": np.ones(4, np.float32)})["value"] == pytest.approx(4 * wanted)
    assert len(program.variables) == 3  # the evaluation has created no variables


CASES = [
    ("x", "activation x"),
    ("w", "variable w"),
    ("overflow", "activation square"),
    ("root", "gradient w"),
    (None, None),
]


@pytest.mark.parametrize("mesh_shape", MESHES)
@pytest.mark.parametrize(("bad", "first"), CASES)
def test_the_first_bad_tensor_is_named(bad, first, mesh_shape):
    def look(mesh, features):
        w, x = make_weight(mesh), features["x"]
        y = mtf.square(x * w) if bad == "overflow" else x * w
        loss = mtf.reduce_sum(mtf.sqrt(y - y) if bad == "root" else y)
        return largest_magnitudes(loss, mesh)

    program = program_of(look, mesh_shape)
    x = np.ones(4, np.float32)
    if bad == "x":
        x[1:3] = np.nan, np.inf
    if bad == "overflow":
        x[3] = 1e30
    if bad == "w":
        for part in program.variables["w"].slices:
            part.assign(tf.fill(part.shape, np.nan))
    magnitudes = program({"x": x})
    assert first_nonfinite(magnitudes) == first
    if bad is None:
        assert magnitudes["activation x"] == 1


@pytest.mark.parametrize("mesh_shape", MESHES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adafactor", "lion"])
def test_skipped_steps_are_no_updates(optimizer, mesh_shape):
    """The other steps make the same updates as without the skipped steps."""
    gradients = [1.0, -0.5, 2.0, 0.25]
    plain = make_program(mesh_shape, optimizer, ema_decay=0.5, weight_decay=0.1)
    skipping = make_program(
        mesh_shape, optimizer, on_nonfinite="skip", ema_decay=0.5, weight_decay=0.1
    )
    run(plain, gradients)
    given = [np.nan] * 3 + gradients[:1] + [np.inf] + gradients[1:] + [np.nan]
    shown = run(skipping, given)
    assert [step["is_finite"] for step in shown] == list(map(float, np.isfinite(given)))
    after = variables_of(skipping)
    assert after.pop("step_guard/skipped_steps") == 5
    wanted = variables_of(plain)
    assert set(after) == set(wanted)
    assert_close(after, wanted, 0.0)


@pytest.mark.parametrize("guards", [{}, {"skip_step_sigma": 6.0, "skip_step_window": 8}])
def test_overflows_of_float16_are_no_updates(guards):
    """Float16's loss scaling skips the step, with and without another guard."""
    gradients = [1.0, -0.5, 2.0]
    half = {"activation_dtype": "float16", "optimizer": "adam", **guards}
    plain, skipping = make_program(**half), make_program(**half)
    run(plain, gradients)
    shown = run(skipping, [np.inf, *gradients[:2], np.nan, gradients[2]])
    assert [s["skipped_steps"] for s in shown] == [1, 1, 1, 2, 2]
    for name in ("w", "w/adam_m", "w/adam_v"):
        np.testing.assert_allclose(
            variables_of(skipping)[name], variables_of(plain)[name], rtol=1e-6, err_msg=name
        )
