"""Beam search is compared with a search of every sequence."""

import numpy as np
import pytest

import t2tp.hparams
import t2tp.models  # noqa: F401  (registers the models)
from t2tp import registry
from t2tp.decoding import DecodeOptions, Decoder, Request
from tests.decoding.table_model import EOS, TableModel, ended_sequences, log_prob

PREFIXES = [[], [2], [3, 0, 4], [0, 4]]
LIMIT = 4


def decode(options: str, limit: int = LIMIT):
    decoder = Decoder.from_model(
        TableModel(), DecodeOptions.parse(options), mesh_shape="x:2;y:2", layout="batch:x;vocab:y"
    )
    return decoder([Request(prefix, limit=limit) for prefix in PREFIXES])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("min_length", [0, 2])
@pytest.mark.parametrize("ends", [[EOS], [EOS, 3], [0, 2, 4]])
def test_a_beam_as_wide_as_all_sequences_finds_the_best_of_all(alpha, min_length, ends):
    eos_id = str(ends).replace(" ", "")
    found = decode(
        f"beam_size=300,alpha={alpha},min_length={min_length},return_beams=true,batch_size=4,"
        f"eos_id={eos_id}"
    )
    for prefix, hypotheses in zip(PREFIXES, found, strict=True):
        wanted = ended_sequences(LIMIT, alpha, prefix, min_length, ends)[:300]
        assert [h.tokens for h in hypotheses] == [tokens for _, _, tokens in wanted]
        scores = [[h.score, h.log_prob] for h in hypotheses]
        np.testing.assert_allclose(scores, [each[:2] for each in wanted], rtol=1e-5)
        assert all(h.has_ended for h in hypotheses)


def test_the_best_alone_is_the_first_of_all():
    every = decode("beam_size=3,return_beams=true", limit=12)
    best = decode("beam_size=3", limit=12)
    assert [[h.tokens for h in row] for row in best] == [[row[0].tokens] for row in every]


def test_a_row_that_cannot_end_gives_what_it_has():
    found = decode("beam_size=2,eos_id=-1,return_beams=true")
    for prefix, hypotheses in zip(PREFIXES, found, strict=True):
        assert [len(h.tokens) for h in hypotheses] == [LIMIT, LIMIT]
        assert not any(h.has_ended for h in hypotheses)
        np.testing.assert_allclose(
            [h.log_prob for h in hypotheses],
            [log_prob(h.tokens, prefix) for h in hypotheses],
            rtol=1e-5,
        )


def test_each_row_has_a_limit_of_its_own():
    decoder = Decoder.from_model(TableModel(), DecodeOptions(beam_size=300))
    limits = [1, 2, 3, 4]
    found = decoder([Request(limit=limit) for limit in limits])
    wanted = [ended_sequences(limit, 0.6)[0][2] for limit in limits]
    assert [row[0].tokens for row in found] == wanted


def test_the_padding_of_a_split_vocabulary_is_no_candidate():
    """The beam is wider than the vocabulary of 5 tokens, so few candidates are alive at first."""
    hparams = registry.hparams("transformer_lm_plain_tiny")
    model = registry.model("transformer_lm")(hparams, {"targets": 5})
    options = DecodeOptions.parse("beam_size=6,return_beams=true,batch_size=1")
    on_mesh = dict(mesh_shape="model:2", layout="vocab:model")
    decoder = Decoder.from_model(model, options, **on_mesh)
    assert all(token < 5 for each in decoder([Request([2], limit=3)])[0] for token in each.tokens)
