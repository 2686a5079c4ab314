"""Transformers fill their whole length, and their scores match the loss."""

from dataclasses import replace

import numpy as np
import pytest

from t2tp.decoding import DecodeOptions, Decoder, Request
from t2tp.decoding.scoring import ScoredRow, Scorer, score
from t2tp.mesh.layout import Layout
from t2tp.models.transformer_lm import TransformerLm
from t2tp.program.program import Program
from tests.models.small_lm import make_hparams

VOCAB = 30


def make_model() -> TransformerLm:
    sizes = dict(max_length=24, num_heads=2, num_hidden_layers=1)
    return TransformerLm(make_hparams(**sizes), {"targets": VOCAB})


def decoder(options: str) -> Decoder:
    return Decoder.from_model(make_model(), DecodeOptions.parse(options), seed=1)


@pytest.mark.parametrize("options", ["beam_size=1", "beam_size=2"])
def test_a_prompt_as_long_as_the_model_is_left_as_it_is(options):
    full, other = decoder(f"{options},batch_size=2")([Request([2] * 24), Request([2] * 23)])
    assert full[0].tokens == [] and len(other[0].tokens) <= 1


@pytest.mark.parametrize("first", [None, 5])
@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("data:2", "batch:data")])
def test_what_is_written_is_scored_as_it_was_decoded(mesh_shape, layout, first):
    prefixes = [[], [2, 3, 4], [6]]
    requests = [Request(prefix, first_token=first) for prefix in prefixes]
    found = [row[0] for row in decoder("beam_size=1,extra_length=8,batch_size=4")(requests)]
    model = make_model()

    def evaluate(features, batch):
        def step(mesh, given):
            return score(model, mesh, given)

        return Program(step, features, mesh_shape=mesh_shape, layout=layout, seed=1)(batch)

    scorer = Scorer(evaluate, Layout(mesh_shape, layout), max_length=24, batch_size=2)
    rows = [
        ScoredRow([*prefix, *h.tokens, *[1] * h.has_ended], start=len(prefix), first_token=first)
        for prefix, h in zip(prefixes, found, strict=True)
    ]
    scores = scorer(rows)
    np.testing.assert_allclose(
        [each.log_prob for each in scores], [h.log_prob for h in found], rtol=1e-4
    )
    assert all(each.is_greedy for each in scores)
    other = scorer([replace(rows[1], first_token=7), replace(rows[1], start=0, first_token=7)])
    assert other[0].log_prob != pytest.approx(scores[1].log_prob, rel=1e-4)
    assert other[1].log_prob < other[0].log_prob and not other[1].is_greedy
    with pytest.raises(ValueError, match="context_length is 24"):
        scorer([ScoredRow([2] * 25)])
