"""Preference losses equal their formulas, for any packing, weights and mesh."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
import t2tp.hparams  # registers the sets
from t2tp import registry
from t2tp.models.preferences import REFERENCES, preference_loss

BATCH, LENGTH, PAIRS, VOCAB = 4, 12, 3, 8
SHAPES = {
    **dict.fromkeys(
        ("targets", "targets_segmentation", "targets_weights"),
        (f"batch:{BATCH};length:{LENGTH}", tf.int32),
    ),
    **dict.fromkeys(REFERENCES, (f"batch:{BATCH};pairs:{PAIRS}", tf.float32)),
    "logits": (f"batch:{BATCH};length:{LENGTH};vocab:{VOCAB}", tf.float32),
}
MESHES = [("", ""), ("data:2;model:2", "batch:data;vocab:model"), ("seq:4", "length:seq")]


def random_batch(draw):
    """Returns rows of up to `PAIRS` pairs with random lengths, and their tokens as a list."""
    batch = {
        name: np.zeros(t2tp.Feature(*shape).shape.to_integer_list, shape[1].as_numpy_dtype)
        for name, shape in SHAPES.items()
    }
    batch["logits"][:] = draw.normal(0, 2, batch["logits"].shape)
    batch["targets"][:] = draw.integers(0, VOCAB, batch["targets"].shape)
    replies = []
    for row in range(BATCH):
        place = 0
        for pair in range(draw.integers(0, PAIRS + 1)):
            sizes = draw.integers(1, 4, 2)
            if place + sizes.sum() > LENGTH:
                break
            for number, size in enumerate(sizes):
                part = slice(place, place + size)
                batch["targets_segmentation"][row, part] = 2 * pair + number + 1
                begin = place + draw.integers(0, size)  # At least the last token is learned.
                batch["targets_weights"][row, begin : part.stop] = 1
                replies.append((row, slice(begin, part.stop)))
                place = part.stop
            for name in REFERENCES:
                batch[name][row, pair] = draw.normal(-5, 2)
    return batch, replies


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def by_hand(batch, replies, kind, beta, gamma, smoothing):
    """Returns the mean loss and the rewards' margin in float64."""
    logits = batch["logits"].astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses, margins = [], []
    for number in range(0, len(replies), 2):
        scores, sums = [], []
        for (row, tokens), name in zip(replies[number : number + 2], REFERENCES, strict=True):
            ids = batch["targets"][row, tokens]
            total = sum(log_probs[row, tokens][range(len(ids)), ids])
            if kind in ("dpo", "dpo_norm", "ipo"):
                pair = (batch["targets_segmentation"][row, tokens.start] - 1) // 2
                total -= float(batch[name][row, pair])
            mean = total / len(ids)
            scores.append(total if kind == "dpo" else mean)
            sums.append(total if kind in ("dpo", "dpo_norm", "ipo") else mean)
        h = scores[0] - scores[1]
        if kind == "ipo":
            losses.append((h - 1 / (2 * beta)) ** 2)
        elif kind == "orpo":
            odds = [score - math.log(1 - math.exp(score)) for score in scores]
            losses.append(-beta * log_sigmoid(odds[0] - odds[1]))
        else:
            x = beta * h - (gamma if kind == "simpo" else 0)
            losses.append(-(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x))
        margins.append(beta * (sums[0] - sums[1]))
    return np.mean(losses), np.sum(margins)


def program(kind, mesh, layout, **values):
    hparams = registry.hparams("transformer_lm_tiny")
    for name, value in {"preference_loss": kind, **values}.items():
        hparams.set(name, value)

    def step_fn(mesh, features):
        features = dict(features)
        out = preference_loss(hparams, features.pop("logits"), features)
        return {"loss": out.loss, **out.sums}

    features = {name: t2tp.Feature(*shape) for name, shape in SHAPES.items()}
    return t2tp.Program(step_fn, features, mesh_shape=mesh, layout=layout)


CASES = {
    "dpo": {"preference_label_smoothing": 0.2},
    "dpo_norm": {},
    "ipo": {},
    "simpo": {"preference_margin": 0.7},
    "orpo": {},
}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", CASES)
def test_a_loss_equals_its_formula(kind, mesh):
    beta = 0.4
    computed = program(kind, *mesh, preference_beta=beta, **CASES[kind])

    @settings(max_examples=8, derandomize=True)
    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        batch, replies = random_batch(np.random.default_rng(seed))
        if not replies:
            return
        outputs = computed(batch)
        smoothing = CASES[kind].get("preference_label_smoothing", 0.0)
        loss, margin = by_hand(batch, replies, kind, beta, 0.7, smoothing)
        assert outputs["pairs"] == len(replies) // 2
        assert float(outputs["loss"]) == pytest.approx(loss, rel=2e-5, abs=1e-5)
        rewards = float(outputs["chosen_rewards"]) - float(outputs["rejected_rewards"])
        assert rewards == pytest.approx(margin, rel=1e-4, abs=1e-4)

    check()


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("dpo", "label_smoothing", 0.1),
        ("simpo", "z_loss", 1e-4),
        ("ipo", "preference_label_smoothing", 0.1),
        ("orpo", "preference_label_smoothing", 0.1),
    ],
)
def test_an_option_without_effect_is_refused(kind, name, value):
    with pytest.raises(ValueError, match=f"{kind}.*{name}=0"):
        program(kind, "", "", **{name: value})
