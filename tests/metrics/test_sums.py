"""The sums behind metrics, on several meshes, match NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import metrics, mtf
from t2tp.problems.metrics import METRICS, compute, needed_sums, reported

BATCH, LENGTH, VOCAB = 4, 24, 8
LAYOUTS = [("", ""), ("a:2;b:2", "batch:a;vocab:b"), ("a:4", "length:a")]


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(0)
    targets = random.integers(0, VOCAB, (BATCH, LENGTH))
    logits = random.normal(size=(BATCH, LENGTH, VOCAB)).astype(np.float32)
    # Most predictions are right; all are right in row 1, and row 3 is empty.
    logits += 3 * np.eye(VOCAB, dtype=np.float32)[targets]
    logits[1] += 20 * np.eye(VOCAB, dtype=np.float32)[targets[1]]
    lengths = np.array([LENGTH, 19, 11, 0])
    segmentation = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    segmentation[0, 13:] = 2  # two sequences in a row
    return {"logits": logits, "targets": targets, "segmentation": segmentation}


def on_mesh(arrays, mesh_shape, layout):
    batch, length, vocab = (
        mtf.Dimension(*dim) for dim in (("batch", BATCH), ("length", LENGTH), ("vocab", VOCAB))
    )
    features = {
        "logits": t2tp.Feature(mtf.Shape([batch, length, vocab]), tf.float32),
        "targets": t2tp.Feature(mtf.Shape([batch, length]), tf.int32),
        "segmentation": t2tp.Feature(mtf.Shape([batch, length]), tf.int32),
    }

    def step(mesh, given):
        logits, targets = given["logits"], given["targets"]
        weights = mtf.cast(mtf.not_equal(given["segmentation"], 0), tf.float32)
        nll = mtf.layers.softmax_cross_entropy_with_logits(
            logits, mtf.one_hot(targets, vocab), vocab
        )
        return {
            **metrics.token_sums(nll, logits, targets, weights, vocab),
            **metrics.correct_in_top_k(logits, targets, weights, vocab, k=2),
            **metrics.sequence_sums(logits, targets, weights, vocab, batch),
            **metrics.positive_sums(logits, targets, weights, vocab),
        }

    program = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)
    outputs = program(arrays)
    return {name: float(outputs[name]) for name in outputs}


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def sums(arrays, request):
    return on_mesh(arrays, *request.param)


def test_tokens_and_sequences_are_counted(arrays, sums):
    logits, targets = arrays["logits"].astype(np.float64), arrays["targets"]
    real = arrays["segmentation"] > 0
    logit = np.take_along_axis(logits, targets[..., None], -1)
    right = logits.argmax(-1) == targets
    rank = (logits > logit).sum(-1)
    nll = np.log(np.exp(logits).sum(-1)) - logit[..., 0]
    assert sums["tokens"] == real.sum()
    assert sums["nll"] == pytest.approx(nll[real].sum(), rel=1e-6)
    assert sums["correct"] == (right & real).sum() < real.sum()
    assert sums["correct_top_2"] == ((rank < 2) & real).sum() > sums["correct"]
    assert (sums["sequences"], sums["correct_sequences"]) == (3, 1)
    predicted, positive = logits.argmax(-1) == 1, targets == 1
    assert sums["positives"] == (positive & real).sum()
    assert sums["predicted_positives"] == (predicted & real).sum()
    assert sums["true_positives"] == (predicted & positive & real).sum()


def test_logits_that_are_no_numbers_are_wrong(arrays):
    sums = on_mesh({**arrays, "logits": np.full_like(arrays["logits"], np.nan)}, "", "")
    assert sums["correct_top_2"] == 0


def test_figures_are_ratios_of_sums():
    sums = {
        **{"nll": 8 * math.log(2), "tokens": 4.0, "correct": 3.0, "correct_top_5": 4.0},
        **{"sequences": 2.0, "correct_sequences": 1.0, "bytes": 16.0, "expert_dropped": 1.0},
        **{"true_positives": 2.0, "positives": 3.0, "predicted_positives": 5.0},
        **{"loss/cross_entropy": 6.0, "loss_weight/cross_entropy": 4.0, "expert_choices": 8.0},
        **{"loss/load_balance": 3.0, "loss_weight/load_balance": 6.0},
        **{"pairs": 2.0, "chosen_rewards": 3.0, "rejected_rewards": -1.0, "preferred": 1.0},
        **{"chosen_log_probs": -6.0, "rejected_log_probs": -8.0, "log_ratios": 2.0},
    }
    figures = {
        **{"loss": 2.0, "neg_log_perplexity": -2 * math.log(2), "perplexity": 4.0},
        **{"bits_per_byte": 0.5, "bits_per_dim": 2.0, "accuracy": 0.75, "accuracy_top5": 1.0},
        **{"accuracy_per_sequence": 0.5, "f1": 0.5, "expert_dropped_share": 0.125},
        **{"reward_chosen": 1.5, "reward_rejected": -0.5, "reward_margin": 2.0},
        **{"reward_accuracy": 0.5, "log_prob_chosen": -3.0, "log_prob_rejected": -4.0},
        **{"reference_kl": 0.5},
    }
    assert compute(METRICS, sums) == pytest.approx(figures)
    assert needed_sums(["perplexity", "accuracy_top5"]) == {"nll", "tokens", "correct_top_5"}


def test_a_sum_that_the_model_did_not_count_is_named():
    with pytest.raises(
        ValueError, match=r"accuracy_top5 needs the sums correct_top_5, and the mod"
    ):
        compute(["accuracy_top5"], {"nll": 1.0, "tokens": 1.0})


def test_what_a_model_counts_is_reported_though_the_problem_does_not_list_it():
    sums = {
        **{"nll": 8.0, "tokens": 4.0, "correct": 3.0, "expert_dropped": 1.0, "expert_choices": 8.0},
        **{"loss/cross_entropy": 6.0, "loss_weight/cross_entropy": 4.0, "my_own_count": 7.0},
        **{"loss/load_balance": 3.0, "loss_weight/load_balance": 6.0},
    }
    assert reported(["loss", "f1"], sums) == {
        "loss": 2.0,
        "loss/cross_entropy": 1.5,
        "loss/load_balance": 0.5,
        "expert_dropped_share": 0.125,
        "my_own_count": 7.0,
    }
