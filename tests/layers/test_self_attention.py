"""Attention layers: dropout and refusals. Tests of models compare what they compute."""

import functools

import numpy as np
import pytest

from t2tp import mtf
from t2tp.layers.attention import SelfAttention
from t2tp.layers.heads import Heads
from t2tp.layers.passes import FullForward, Prefill, SequenceInfo
from tests.layers.running import run

BATCH, LENGTH, D_MODEL, HEADS, D_KV = 4, 8, 16, 4, 8
SEGMENTS = np.array(
    [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0], [1] * 5 + [0] * 3, [1, 1, 2, 2, 3, 3, 3, 3]]
)


def inputs():
    generator = np.random.default_rng(0)
    shape = f"batch:{BATCH};length:{LENGTH}"
    return {
        "x": (f"{shape};d_model:{D_MODEL}", generator.normal(size=[BATCH, LENGTH, D_MODEL])),
        "segments": (shape, SEGMENTS),
        "positions": (shape, np.tile(np.arange(LENGTH), (BATCH, 1))),
    }


def test_dropout_changes_what_is_trained_with_only():
    def build(x, segments, positions, dropout, training):
        attention = SelfAttention(Heads(HEADS, D_KV), causal=True, dropout=dropout)
        forward = FullForward(SequenceInfo(positions, segments), training)
        return {"y": attention(x, forward, "self")}

    dropped, whole, wanted = (
        run(functools.partial(build, dropout=dropout, training=training), inputs())["y"]
        for dropout, training in ((0.5, True), (0.5, False), (0.0, True))
    )
    np.testing.assert_array_equal(whole, wanted)
    assert np.abs(dropped - wanted).max() > 0.1


def test_parameters_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="num_kv_heads 3 must divide num_heads 4"):
        Heads(4, 8, num_kv_heads=3)


def test_a_state_too_short_for_what_is_given_is_refused():
    def build(x, segments, positions):
        attention = SelfAttention(Heads(HEADS, D_KV), causal=True)
        forward = Prefill(SequenceInfo(positions), mtf.Dimension("length", 4), {})
        attention(x, forward, "self")
        return {}

    with pytest.raises(ValueError, match="8 tokens do not fit into the 4"):
        run(build, inputs())
