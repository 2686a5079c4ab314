"""Preference losses equal their formulas, for any packing, weights and mesh."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp.models.preferences import REFERENCES, preference_loss
from tests.models.small_lm import changed

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


def by_hand(batch, replies, kind, options):
    """Returns the mean loss, the sum of the rewards' margins, and scores [pairs, 2], in float64."""
    beta, gamma, smoothing, sft = (
        options.get(f"preference_{name}", 0.0)
        for name in ("beta", "margin", "label_smoothing", "sft")
    )
    logits = batch["logits"].astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses, margins, chosen_log_probs, all_scores = [], [], [], []
    for number in range(0, len(replies), 2):
        scores, sums = [], []
        for (row, tokens), name in zip(replies[number : number + 2], REFERENCES, strict=True):
            ids = batch["targets"][row, tokens]
            each = log_probs[row, tokens][range(len(ids)), ids]
            chosen_log_probs.extend(each if name == "reference_chosen" else [])
            total = sum(each)
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
            x = beta * h - gamma
            losses.append(-(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x))
        margins.append(beta * (sums[0] - sums[1]))
        all_scores.append(scores)
    loss = np.mean(losses) - sft * np.mean(chosen_log_probs)
    return loss, np.sum(margins), np.array(all_scores)


def by_trl(kind, options, scores):
    """Returns the mean loss of scores, by the methods of TRL's trainers."""
    reason = "pip install -e '.[hf-tests]'"
    settings = SimpleNamespace(
        beta=options["preference_beta"],
        alpha=0.0,
        loss_type=kind,
        simpo_gamma=options.get("preference_margin"),
        label_smoothing=options.get("preference_label_smoothing"),
        accelerator=SimpleNamespace(device="cpu"),
    )
    torch = pytest.importorskip("torch", reason=reason)
    pytest.importorskip("trl", reason=reason)
    scores = torch.tensor(scores).unbind(1)
    if kind == "orpo":
        from trl.experimental.orpo import ORPOTrainer

        return -ORPOTrainer.odds_ratio_loss(settings, *scores)[0].mean().item()
    from trl.experimental.cpo import CPOTrainer

    return CPOTrainer.cpo_loss(settings, *scores)[0].mean().item()


def program(kind, mesh, layout, **values):
    hparams = changed("transformer_lm_tiny", preference_loss=kind, **values)

    def step_fn(mesh, features):
        features = dict(features)
        out = preference_loss(hparams, features.pop("logits"), features)
        return {"loss": out.loss, **out.sums}

    features = {name: t2tp.Feature(*shape) for name, shape in SHAPES.items()}
    return t2tp.Program(step_fn, features, mesh_shape=mesh, layout=layout)


SMOOTHED = {"preference_label_smoothing": 0.2}
CASES = {
    "dpo": SMOOTHED,
    "dpo_norm": {**SMOOTHED, "preference_sft": 0.3},
    "ipo": {},
    "simpo": {**SMOOTHED, "preference_margin": 0.7},
    "orpo": {"preference_sft": 1.0},
}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", CASES)
def test_a_loss_equals_its_formula(kind, mesh):
    options = {"preference_beta": 0.4, **CASES[kind]}
    computed = program(kind, *mesh, **options)

    @settings(max_examples=8, derandomize=True)
    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        batch, replies = random_batch(np.random.default_rng(seed))
        if not replies:
            return
        outputs = computed(batch)
        loss, margin, _ = by_hand(batch, replies, kind, options)
        assert outputs["pairs"] == len(replies) // 2
        assert float(outputs["loss"]) == pytest.approx(loss, rel=2e-5, abs=1e-5)
        rewards = float(outputs["chosen_rewards"]) - float(outputs["rejected_rewards"])
        assert rewards == pytest.approx(margin, rel=1e-4, abs=1e-4)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simpo", "orpo"])
def test_a_loss_without_reference_equals_that_of_trl(kind):
    options = {"preference_beta": 0.4, **CASES[kind], "preference_sft": 0.0}
    computed = program(kind, "", "", **options)
    batch, replies = random_batch(np.random.default_rng(1))
    scores = by_hand(batch, replies, kind, options)[2]
    assert len(scores) > 2
    assert float(computed(batch)["loss"]) == pytest.approx(by_trl(kind, options, scores), abs=1e-5)


REFUSED = [
    ("dpo", "label_smoothing", 0.1),
    ("dpo", "preference_margin", 0.1),
    ("simpo", "z_loss", 1e-4),
    ("ipo", "preference_label_smoothing", 0.1),
    ("orpo", "preference_label_smoothing", 0.1),
]


@pytest.mark.parametrize(("kind", "name", "value"), REFUSED)
def test_an_option_without_effect_is_refused(kind, name, value):
    with pytest.raises(ValueError, match=f"{kind} has no {name}: set {name}="):
        program(kind, "", "", **{name: value})
