"""mesh-tensorflow's beam search and greedy decoding, which come without tests, on our engine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf

BATCH, BEAM = mtf.Dimension("batch", 2), mtf.Dimension("beam", 4)
LENGTH, VOCAB = mtf.Dimension("length", 4), mtf.Dimension("vocab", 6)
EOS = 1
LOGITS = 3 * np.random.default_rng(0).normal(size=(2, 6, 6))  # [batch, previous token, token]
LOG_PROBS = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
MESHES = [
    ("", ""),
    ("x:2", "batch:x"),
    ("x:2", "vocab:x"),
    ("x:2;y:3", "batch:x;vocab:y"),
    ("x:2", "length:x"),
]


def make_logits_fn(mesh):
    """The next token depends on the one before; a state counts the steps."""
    previous = mtf.Dimension("previous", VOCAB.size)
    table = mtf.import_tf_tensor(
        mesh, LOGITS.astype(np.float32), mtf.Shape([BATCH, previous, VOCAB])
    )

    def logits_fn(step, ids, states):
        # In the first step this is position -1, of which gather gives 0.
        token = mtf.gather(ids, step - 1, LENGTH)
        return mtf.gather(table, token, previous), [state + 1.0 for state in states]

    return logits_fn


def run(step, mesh_shape="", layout="", number=0):
    program = t2tp.Program(step, mesh_shape=mesh_shape, layout=layout)
    return program(step=number)


def beam_step(alpha=0.0, stop_early=True, num_prefilter=0, use_tpu=True):
    def step(mesh, features):
        del features
        ids, scores = mtf.beam_search.beam_search(
            make_logits_fn(mesh),
            mtf.zeros(mesh, mtf.Shape([BATCH, BEAM, LENGTH]), tf.int32),
            alpha,
            states=[mtf.zeros(mesh, mtf.Shape([BATCH, BEAM]))],
            stop_early=stop_early,
            num_prefilter=num_prefilter,
            use_tpu=use_tpu,
        )
        return {"ids": ids, "scores": scores}

    return step


def all_sequences(batch, alpha):
    """Every finished sequence with its score, the best first."""
    found = []
    for length in range(1, LENGTH.size + 1):
        for body in itertools.product(
            [t for t in range(VOCAB.size) if t != EOS], repeat=length - 1
        ):
            tokens = [*body, EOS]
            pairs = zip([0, *tokens], tokens, strict=False)
            log_prob = sum(LOG_PROBS[batch, before, token] for before, token in pairs)
            penalty = ((5.0 + length) / 6.0) ** alpha
            found.append((log_prob / penalty, tokens + [0] * (LENGTH.size - length)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_best_finished_sequence_is_found_with_its_score(mesh_shape, layout, alpha):
    values = run(beam_step(alpha, stop_early=False), mesh_shape, layout)
    for batch in range(2):
        score, tokens = all_sequences(batch, alpha)[0]
        assert values["ids"][batch, 0].tolist() == tokens
        np.testing.assert_allclose(values["scores"][batch, 0], score, rtol=1e-5)


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES[1:])
def test_any_mesh_gives_the_same_beams(mesh_shape, layout):
    wanted = run(beam_step(0.6))
    values = run(beam_step(0.6), mesh_shape, layout)
    np.testing.assert_array_equal(values["ids"], wanted["ids"])
    np.testing.assert_allclose(values["scores"], wanted["scores"], rtol=1e-5)


def test_states_kept_in_variables_give_the_same_beams():
    wanted, values = run(beam_step()), run(beam_step(use_tpu=False), "x:2", "batch:x")
    np.testing.assert_array_equal(values["ids"], wanted["ids"])


def greedy_step(temperature):
    def step(mesh, features):
        del features
        ids = mtf.beam_search.greedy_decode(
            make_logits_fn(mesh),
            mtf.zeros(mesh, mtf.Shape([BATCH, LENGTH]), tf.int32),
            temperature=temperature,
            initial_states=[mtf.zeros(mesh, mtf.Shape([BATCH]))],
        )
        return {"ids": ids}

    return step


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_greedy_decoding_takes_the_most_likely_token_each_time(mesh_shape, layout):
    ids = run(greedy_step(0.0), mesh_shape, layout)["ids"]
    for batch in range(2):
        before = 0
        for token in ids[batch]:
            assert token == LOGITS[batch, before].argmax()
            before = token


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES[1:])
def test_samples_are_the_same_on_any_mesh_and_differ_from_step_to_step(mesh_shape, layout):
    one, split = (
        t2tp.Program(greedy_step(1.0), mesh_shape=shape, layout=rules)
        for shape, rules in (("", ""), (mesh_shape, layout))
    )
    wanted = [one(step=n)["ids"] for n in range(3)]
    values = [split(step=n)["ids"] for n in range(3)]
    np.testing.assert_array_equal(values, wanted)
    assert not np.array_equal(wanted[0], wanted[1]) or not np.array_equal(wanted[1], wanted[2])
