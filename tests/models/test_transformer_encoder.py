"""The encoder: masking, metrics, and attention."""

import numpy as np
import pytest

import t2tp
from t2tp.models.model import FeatureMismatchError
from tests.models.small_lm import VOCAB_SIZE, make_batch
from tests.models.small_transformers import (
    FAMILIES,
    Family,
    classes,
    examples,
    feature_of,
    loss_program,
)


def masking(batch, mesh_shape):
    """Returns a program that outputs the masked tokens and which positions are predicted."""
    model = FAMILIES["masked"].make()

    def step(mesh, given):
        shown, is_masked = model._masked(
            given["targets"], given["segments"], given.get("example_index")
        )
        return {"shown": shown, "is_masked": is_masked}

    features = {name: feature_of(array) for name, array in batch.items()}
    layout = "batch:data;length:seq"
    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)


def some_targets(*sizes):
    return np.random.default_rng(0).integers(1, VOCAB_SIZE, sizes).astype(np.int32)


def test_tokens_are_masked_as_bert_does():
    """Predicts 15 % of the real tokens; of these, 80 % are masked, 10 % random, 10 % unchanged."""
    targets = some_targets(64, 512)
    segments = (np.arange(512) < 400).astype(np.int32) * np.ones_like(targets)
    batch = {"targets": targets, "segments": segments}
    program = masking(batch, "data:2")
    out = program(batch)
    is_masked, shown = out["is_masked"] == 1, out["shown"]
    assert not is_masked[segments == 0].any()
    assert is_masked[segments == 1].mean() == pytest.approx(0.15, abs=0.01)
    np.testing.assert_array_equal(shown[~is_masked], targets[~is_masked])
    became_mask = shown[is_masked] == VOCAB_SIZE
    stayed = shown[is_masked] == targets[is_masked]
    assert became_mask.mean() == pytest.approx(0.8, abs=0.02)
    assert stayed.mean() == pytest.approx(0.1 + 0.1 / VOCAB_SIZE, abs=0.02)
    assert shown.max() == VOCAB_SIZE
    assert (program(batch, step=1)["is_masked"] != out["is_masked"]).any()


def shown_in_evaluation(mesh_shape, rows, step):
    """Returns the masked tokens and the predicted positions for a batch of rows of 64 tokens."""
    batch = {"targets": some_targets(100, 64)[rows], "segments": np.ones([len(rows), 64], np.int32)}
    batch["example_index"] = np.asarray(rows)
    return {n: x.copy() for n, x in masking(batch, mesh_shape)(batch, step=step).items()}


def test_in_evaluation_masks_belong_to_the_example():
    rows = list(range(100))
    first = shown_in_evaluation("", rows, 0)
    assert first["is_masked"].mean() == pytest.approx(0.15, abs=0.02)
    assert (first["shown"] == VOCAB_SIZE).sum() == pytest.approx(
        0.8 * first["is_masked"].sum(), rel=0.1
    )
    assert len(np.unique(first["is_masked"], axis=0)) > 95
    for mesh_shape in ("data:2", "seq:4", "data:2;seq:2"):
        backwards = rows[::-1][:40]
        other = shown_in_evaluation(mesh_shape, backwards, 9)
        for name, array in other.items():
            np.testing.assert_array_equal(array, first[name][backwards])


def test_an_evaluation_without_the_examples_indices_is_refused():
    family = Family("transformer_encoder", make_batch, {"targets": VOCAB_SIZE}, {})
    with pytest.raises(FeatureMismatchError, match="evaluated with a feature example_index"):
        loss_program(family, training=False, with_gradients=False)


def test_an_evaluation_counts_masked_tokens_and_the_others():
    values = loss_program(FAMILIES["masked"], training=False, with_gradients=False)(examples())
    tokens = np.count_nonzero(make_batch()["targets_segmentation"])
    assert 0 < values["tokens"] < 0.4 * tokens
    assert values["tokens"] + values["unmasked_tokens"] == tokens


def test_rows_without_weight_do_not_count():
    program = loss_program(FAMILIES["classes"], "data:2", training=False, with_gradients=False)
    batch = classes()
    values = program(batch)
    positives = {"positives", "predicted_positives", "true_positives"}
    assert set(values) == {"loss", "nll", "tokens", "correct", "correct_top_5"} | positives
    assert values["tokens"] == 7
    assert values["positives"] == 3
    other = {**batch, "targets": np.where(batch["weights"] == 0, 0, batch["targets"])}
    assert float(program(other)["loss"]) == float(values["loss"])


def test_many_classes_have_no_positives():
    family = Family("transformer_encoder", classes, {"inputs": VOCAB_SIZE, "targets": 10}, {})
    values = loss_program(family, training=False, with_gradients=False)(classes(10))
    assert "positives" not in values
    assert values["correct"] <= values["correct_top_5"]


def test_a_masked_language_model_has_no_classes():
    with pytest.raises(ValueError, match="is a masked language model"):
        FAMILIES["masked"].make().class_logits(None, {})


def test_padding_changes_no_class():
    program = loss_program(FAMILIES["classes"], training=False, with_gradients=False)
    batch = classes()
    other = np.where(batch["inputs_segmentation"] == 0, 7, batch["inputs"])
    assert (other != batch["inputs"]).any()
    values, changed = program(batch), program({**batch, "inputs": other})
    assert float(values["loss"]) == pytest.approx(float(changed["loss"]), rel=1e-6)


def test_the_features_of_the_other_kind_of_problem_are_refused():
    with pytest.raises(FeatureMismatchError, match="weights is missing"):
        FAMILIES["classes"].make().check_features(
            ["inputs", "inputs_segmentation", "inputs_position", "targets"]
        )
    with pytest.raises(FeatureMismatchError, match="targets_segmentation"):
        FAMILIES["masked"].make().check_features(["targets"])
