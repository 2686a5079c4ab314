"""The language model's numbers: those of its description, in any layout."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.models.transformer_lm import TransformerLm
from tests.models import reference_lm
from tests.models.small_lm import (
    FEATURES,
    LENGTH,
    VOCAB_SIZE,
    loss_program,
    make_batch,
    make_hparams,
    one_document_a_row,
    training_program,
)

MEGATRON = "batch:data;heads:model;d_ff:model;vocab:model"
LAYOUTS = [
    ("", "", 2),
    ("data:4", MEGATRON, 1),
    ("model:4", MEGATRON, 1),
    ("data:2;model:2", MEGATRON, 2),
    ("data:2;model:4", MEGATRON, 1),
    ("model:2;data:2", "batch:data;heads:model", 1),
    ("a:2;b:2;c:2", "batch:a;heads:b;d_ff:b;vocab:b;d_model:c", 1),
]


@functools.cache
def reference(layers):
    """Loss, metrics and gradients, in float64, of the initial values."""
    batch = make_batch()
    variables = loss_program(num_hidden_layers=layers).variables
    params = {v.spec.name: tf.constant(v.numpy(), tf.float64) for v in variables}
    with tf.GradientTape() as tape:
        tape.watch(params)
        is_real = batch["targets_segmentation"] != 0
        nll = tf.reduce_sum(reference_lm.token_losses(params, batch) * is_real)
        loss = nll / is_real.sum()
    values = {"loss": loss, "nll": nll, "tokens": is_real.sum()}
    gradients = tape.gradient(loss, params)
    return values | {f"d_{name}": tf.convert_to_tensor(g) for name, g in gradients.items()}


def assert_close(values, wanted):
    """Float32's rounding, 6e-8 an operation, adds up to some 1e-6 of a tensor's largest element."""
    for name, value in wanted.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(values[name], value, rtol=0, atol=5e-6 * scale, err_msg=name)


@pytest.mark.parametrize(("mesh_shape", "layout", "layers"), LAYOUTS)
def test_any_layout_gives_the_loss_and_all_gradients_of_the_description(mesh_shape, layout, layers):
    program = loss_program(
        mesh_shape, layout, training=True, with_gradients=True, num_hidden_layers=layers
    )
    values, wanted = program(make_batch()), reference(layers)
    assert set(values) == set(wanted)
    assert_close(values, wanted)


def test_evaluation_counts_the_real_tokens_and_those_it_got_right():
    batch = make_batch()
    values = loss_program("data:2;model:2", num_hidden_layers=1)(batch)
    of_sequences = {"sequences", "correct_sequences"}
    assert set(values) == {"loss", "nll", "tokens", "correct", "correct_top_5"} | of_sequences
    assert values["tokens"] == np.count_nonzero(batch["targets_segmentation"])
    assert 0 < values["correct"] < values["correct_top_5"] < values["tokens"]
    assert values["sequences"] == np.count_nonzero(batch["targets_segmentation"].any(axis=1))


def test_a_batch_of_padding_has_no_loss():
    values = loss_program("data:2", num_hidden_layers=1)(
        one_document_a_row(np.zeros_like(make_batch()["targets"]))
    )
    assert values["loss"] == values["nll"] == values["tokens"] == values["correct"] == 0


def random_targets(seed):
    return np.random.default_rng(seed).integers(1, VOCAB_SIZE, (8, LENGTH), np.int32)


def test_packed_documents_cost_what_they_cost_alone():
    targets = random_targets(1)
    alone = np.zeros([2, *targets.shape], np.int32)
    alone[0, :, :5], alone[1, :, :7] = targets[:, :5], targets[:, 5:]
    sizes = [5, 7]
    packed = {
        "targets": targets,
        "targets_segmentation": np.tile(np.repeat([1, 2], sizes), (8, 1)),
        "targets_position": np.tile(np.concatenate([np.arange(n) for n in sizes]), (8, 1)),
    }
    program = loss_program("data:2;model:2", num_hidden_layers=1)
    separate = sum(float(program(one_document_a_row(rows))["nll"]) for rows in alone)
    assert float(program(packed)["nll"]) == pytest.approx(separate, rel=1e-6)
    together = packed | {"targets_segmentation": np.ones_like(targets)}
    assert float(program(together)["nll"]) != pytest.approx(separate, rel=1e-3)


def logits_program(mesh_shape=""):
    def step(mesh, features):
        model = TransformerLm(make_hparams(num_hidden_layers=1), {"targets": VOCAB_SIZE})
        return {"logits": model.logits(mesh, features, training=False)[0]}

    return t2tp.Program(step, FEATURES, mesh_shape=mesh_shape, layout=MEGATRON)


@pytest.mark.parametrize("mesh_shape", ["", "data:2;model:2"])
def test_the_loss_is_that_of_the_logits(mesh_shape):
    batch = one_document_a_row(random_targets(2))
    logits = logits_program(mesh_shape)(batch)["logits"].astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = batch["targets"]
    of_targets = np.take_along_axis(log_probabilities, targets[..., None], axis=-1)
    values = loss_program(mesh_shape, num_hidden_layers=1)(batch)
    assert float(values["nll"]) == pytest.approx(-of_targets.sum(), rel=1e-6)
    assert float(values["correct"]) == np.sum(logits.argmax(-1) == targets)


def test_a_token_changes_only_what_comes_after_it():
    targets = random_targets(3)
    program = logits_program()
    before = program(one_document_a_row(targets))["logits"]
    for changed in (0, 5, LENGTH - 1):
        other = targets.copy()
        other[:, changed] = other[:, changed] % (VOCAB_SIZE - 1) + 1
        differs = (program(one_document_a_row(other))["logits"] != before).any(axis=2)
        assert not differs[:, : changed + 1].any()
        assert differs[:, changed + 1 :].all()


def test_a_length_without_positions_is_refused():
    with pytest.raises(ValueError, match="length 12, and the model has positions for max_length=8"):
        loss_program(max_length=8)


@functools.cache
def losses_with_dropout(mesh_shape):
    hparams = {"num_hidden_layers": 1, "layer_prepostprocess_dropout": 0.3}
    program = loss_program(mesh_shape, training=True, **hparams)
    return [float(program(make_batch(), step=k)["loss"]) for k in range(3)]


@pytest.mark.parametrize("mesh_shape", ["data:4", "data:2;model:2"])
def test_dropout_is_the_same_on_any_mesh(mesh_shape):
    wanted = losses_with_dropout("")
    assert len(set(wanted)) == 3
    np.testing.assert_allclose(losses_with_dropout(mesh_shape), wanted, rtol=2e-6)


def test_dropout_is_off_when_not_training():
    hparams = {"num_hidden_layers": 1, "layer_prepostprocess_dropout": 0.3}
    with_dropout = loss_program(**hparams)(make_batch())
    assert float(with_dropout["loss"]) == float(
        loss_program(num_hidden_layers=1)(make_batch())["loss"]
    )


@functools.cache
def losses_of_training(mesh_shape):
    program = training_program(mesh_shape, num_hidden_layers=1, initializer_stddev=0.02)
    return [float(program(make_batch(k), step=k)["loss"]) for k in range(8)]


@pytest.mark.parametrize("mesh_shape", ["model:4", "data:2;model:2"])
def test_training_is_the_same_on_any_mesh(mesh_shape):
    """Losses may differ by what float32 rounds, and what eight steps make of that."""
    wanted = losses_of_training("")
    assert len(set(wanted)) == 8
    np.testing.assert_allclose(losses_of_training(mesh_shape), wanted, rtol=2e-5)
