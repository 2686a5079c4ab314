"""Cross-entropy: the composed computation's numbers, wherever the logits are split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp import mtf
from t2tp.ops.cross_entropy import softmax_cross_entropy
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("data:4", "batch:data"),
    ("model:4", "vocab:model"),
    ("data:2;model:2", "batch:data;vocab:model"),
    ("data:2;model:4", "batch:data;vocab:model"),
    ("model:4;data:2", "batch:data;vocab:model"),
    ("data:2;model:2", "length:data;vocab:model"),
    ("data:2;model:1", "batch:data;vocab:model"),
]
# First and last class of each slice of 16 classes in 1, 2 and 4 parts.
BORDERS = np.array([0, 3, 4, 7, 8, 11, 12, 15])


def make_inputs(batch=8, length=4, vocab=16, scale=3.0, seed=0):
    random = np.random.default_rng(seed)
    logits = scale * random.normal(size=(batch, length, vocab))
    targets = np.resize(BORDERS, batch * length).reshape(batch, length) % vocab
    return {
        "logits": (f"batch:{batch};length:{length};vocab:{vocab}", logits),
        "targets": (f"batch:{batch};length:{length}", targets),
    }


def ours(logits, targets):
    return softmax_cross_entropy(logits, targets, logits.shape.get_dim_by_name("vocab"))


def composed(logits, targets):
    log_probabilities = logits - tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    return -tf.gather(log_probabilities, targets, batch_dims=2)


def with_options(z_loss, label_smoothing):
    """Ours, and the composed one with its soft targets written out."""

    def ours_with_options(logits, targets):
        return softmax_cross_entropy(
            logits,
            targets,
            logits.shape.get_dim_by_name("vocab"),
            z_loss=z_loss,
            label_smoothing=label_smoothing,
        )

    def composed_with_options(logits, targets):
        log_z = tf.reduce_logsumexp(logits, axis=-1)
        classes = logits.shape[-1]
        low = label_smoothing / (classes - 1)
        soft = tf.one_hot(targets, classes, 1 - label_smoothing, low, dtype=tf.float64)
        loss = -tf.reduce_sum(soft * (logits - log_z[..., None]), axis=-1)
        entropy = -tf.reduce_sum(tf.math.xlogy(soft, soft), axis=-1)
        return loss - entropy + z_loss * log_z**2

    return ours_with_options, composed_with_options


@pytest.mark.parametrize(("z_loss", "label_smoothing"), [(0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_composed_z_loss_and_smoothing(
    mesh_shape, layout, z_loss, label_smoothing
):
    inputs = make_inputs()
    inputs["logits"][1][...] += 5.0  # So that log(Z) is far from 0.
    ours, composed = with_options(z_loss, label_smoothing)
    assert_close(
        with_gradients(ours, inputs, mesh_shape, layout), in_float64(composed, inputs), 2e-6
    )


@pytest.mark.parametrize("layout", ["", "vocab:model"])
def test_the_best_smoothed_loss_is_zero(layout):
    inputs = make_inputs()
    soft = np.where(np.eye(16)[inputs["targets"][1]] == 1, 0.9, 0.1 / 15)
    inputs["logits"] = (inputs["logits"][0], np.log(soft))
    ours, _ = with_options(0.0, 0.1)
    values = with_gradients(ours, inputs, "model:4", layout)
    for value in values.values():
        np.testing.assert_allclose(value, 0.0, atol=2e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_composed_loss_and_gradient(mesh_shape, layout):
    inputs = make_inputs()
    assert_close(
        with_gradients(ours, inputs, mesh_shape, layout), in_float64(composed, inputs), 2e-6
    )


@pytest.mark.parametrize("layout", ["", "batch:data;vocab:model"])
def test_bfloat16_logits_are_computed_with_in_float32(layout):
    """The loss comes in float32; its gradient is a product rounded of two that are rounded."""
    inputs = make_inputs()
    wanted = in_float64(composed, inputs, tf.bfloat16)
    values = with_gradients(ours, inputs, "data:2;model:2", layout, tf.bfloat16)
    assert_close({"y": values["y"]}, {"y": wanted["y"]}, 2e-6)
    assert_close(values, wanted, 3 * 2**-8)


@pytest.mark.parametrize("mesh_shape", ["", "model:4"])
def test_extreme_logits_stay_finite(mesh_shape):
    inputs = make_inputs(scale=1e4)
    values = with_gradients(ours, inputs, mesh_shape, "vocab:model")
    assert np.isfinite(values["y"]).all()
    assert np.isfinite(values["d_logits"]).all()
    assert_close(values, in_float64(composed, inputs), 1e-6)


@pytest.mark.parametrize("options", [(0.0, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize("target", [-1, 16, 99])
@pytest.mark.parametrize("mesh_shape", ["", "model:4"])
def test_a_target_that_is_no_class_never_gives_a_number(mesh_shape, target, options):
    inputs = make_inputs()
    ours, composed = with_options(*options)
    wanted = in_float64(composed, inputs)
    inputs["targets"][1][3, 2] = target
    values = with_gradients(ours, inputs, mesh_shape, "vocab:model")
    for name, value in values.items():
        assert np.isnan(value[3, 2]).all()
        rest = np.arange(8) != 3
        np.testing.assert_allclose(value[rest], wanted[name][rest], rtol=0, atol=2e-5)


def test_the_vocabulary_may_be_any_dimension():
    inputs = make_inputs()
    logits = np.moveaxis(inputs["logits"][1], -1, 1)
    moved = {"logits": ("batch:8;vocab:16;length:4", logits), "targets": inputs["targets"]}
    wanted = in_float64(composed, inputs)
    wanted["d_logits"] = np.moveaxis(wanted["d_logits"], -1, 1)
    values = with_gradients(ours, moved, "data:2;model:2", "batch:data;vocab:model")
    assert_close(values, wanted, 2e-6)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3), (2, 3)]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 9),
)
def test_any_shape_that_the_mesh_divides(mesh, batch, length, vocab):
    data, model = mesh
    inputs = make_inputs(batch * data, length, vocab * model, seed=vocab)
    values = with_gradients(ours, inputs, f"data:{data};model:{model}", LAYOUTS[3][1])
    wanted = in_float64(composed, inputs)
    # Of a single class the gradient is zero, up to rounding: no scale to compare by.
    np.testing.assert_allclose(values["y"], wanted["y"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(values["d_logits"], wanted["d_logits"], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "numbers"), [((0.0, 0.0), 3), ((1e-4, 0.0), 3), ((1e-4, 0.1), 4)]
)
def test_a_split_vocabulary_moves_three_numbers_a_token(options, numbers):
    """And the sum of the logits, for smoothing."""
    ours, _ = with_options(*options)
    features = {
        "logits": t2tp.Feature("batch:8;length:4;vocab:16"),
        "targets": t2tp.Feature("batch:8;length:4", tf.int32),
    }
    program = t2tp.Program(
        lambda mesh, given: {"loss": ours(**given)},
        features,
        mesh_shape="model:4",
        layout="vocab:model",
    )
    assert program.collectives() == {("allreduce", ("model",)): (2, numbers * 8 * 4 * 4)}


def test_targets_of_other_dimensions_are_refused():
    batch, length, vocab = (mtf.Dimension(n, 4) for n in ("batch", "length", "vocab"))

    def step(mesh, given):
        logits = mtf.zeros(mesh, mtf.Shape([batch, length, vocab]))
        targets = mtf.zeros(mesh, mtf.Shape([batch]), tf.int32)
        return {"loss": softmax_cross_entropy(logits, targets, vocab)}

    with pytest.raises(ValueError, match="do not have the dimensions of logits"):
        t2tp.Program(step)


@pytest.mark.parametrize(
    ("options", "vocab", "said"),
    [
        ({"z_loss": -1e-4}, 4, "z_loss must be 0 or above"),
        ({"label_smoothing": 1.0}, 4, r"must be in \[0, 1\)"),
        ({"label_smoothing": 0.1}, 1, "at least two classes"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, vocab, said):
    def step(mesh, given):
        shape = mtf.convert_to_shape(f"batch:4;vocab:{vocab}")
        batch, classes = shape.dims
        targets = mtf.zeros(mesh, mtf.Shape([batch]), tf.int32)
        return {"loss": softmax_cross_entropy(mtf.zeros(mesh, shape), targets, classes, **options)}

    with pytest.raises(ValueError, match=said):
        t2tp.Program(step)
