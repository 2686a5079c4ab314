"""Greedy decoding and sampling."""

from collections import Counter

import numpy as np
import pytest

from t2tp.decoding import DecodeOptions, Decoder, Request
from tests.cases import in_turn
from tests.decoding.table_model import EOS, LOGITS, TOKENS, VOCAB, TableModel, log_prob

LAYOUTS = [
    ("x:2", "batch:x"),
    ("x:2", "vocab:x"),
    ("x:2;y:2", "batch:x;vocab:y"),
    ("x:2;y:4", "batch:x;vocab:y"),
]
PREFIXES = [[], [2], [3, 0, 4], [0, 4], [4], [3, 3]]


def decode(options: str, mesh_shape: str = "", layout: str = "", limit: int = 6, **more):
    decoder = Decoder.from_model(
        TableModel(), DecodeOptions.parse(options), mesh_shape=mesh_shape, layout=layout, **more
    )
    return [row[0] for row in decoder([Request(prefix, limit=limit) for prefix in PREFIXES])]


def greedy(prefix: list[int], limit: int, least: int, ends: list[int]) -> list[int]:
    """Returns the most probable tokens, including the end token."""
    history: list[int] = [0, 0, *prefix]
    tokens: list[int] = []
    while len(tokens) < limit:
        logits = LOGITS[history[-2], history[-1], :TOKENS].copy()
        if len(tokens) < least:
            logits[ends] = -np.inf
        token = int(logits.argmax())
        tokens.append(token)
        if token in ends:
            break
        history.append(token)
    return tokens


@pytest.mark.parametrize("min_length", [0, 3])
@pytest.mark.parametrize("ends", [[EOS], [EOS, 3, 4]])
def test_greedy_takes_the_most_probable_token_each_time(min_length, ends):
    eos_id = str(ends).replace(" ", "")
    options = f"beam_size=1,batch_size=4,min_length={min_length},eos_id={eos_id}"
    for prefix, found in zip(PREFIXES, decode(options, *LAYOUTS[2]), strict=True):
        written = greedy(prefix, 6, min_length, ends)
        assert found.has_ended == (written[-1] in ends)
        assert found.tokens == written[: len(written) - found.has_ended]
        np.testing.assert_allclose(found.log_prob, log_prob(written, prefix), rtol=1e-5)


SEEDED = in_turn(
    ["temperature=1", "temperature=0.7,top_k=3", "top_p=0.8,min_p=0.2", "top_k=4,top_p=0.9"],
    [*LAYOUTS[:3], LAYOUTS[1], *LAYOUTS[2:]],
    times=2,
)


@pytest.mark.parametrize(("options", "mesh_shape", "layout"), SEEDED)
def test_any_layout_draws_the_same_for_a_seed(options, mesh_shape, layout):
    wanted = decode(options, seed=3)
    found = decode(options, mesh_shape, layout, seed=3)
    assert [row.tokens for row in found] == [row.tokens for row in wanted]
    np.testing.assert_allclose(
        [row.log_prob for row in found], [row.log_prob for row in wanted], rtol=1e-5
    )


def test_seeds_differ_and_batches_do_not():
    drawn = decode("temperature=1", seed=3)
    assert drawn == decode("temperature=1,batch_size=2", seed=3)
    assert drawn != decode("temperature=1", seed=4)


def truth(options: DecodeOptions, logits: np.ndarray) -> np.ndarray:
    """Returns the distribution to sample from; computes it by sorting."""
    scaled = logits.astype(np.float64) / options.sampling_temperature
    order = np.argsort(-scaled)
    if options.top_k:
        order = order[: options.top_k]
    probabilities = np.exp(scaled[order] - scaled.max())
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities) - probabilities
    kept = order[before < options.top_p] if options.top_p < 1 else order
    kept = kept[scaled[kept] >= scaled.max() + np.log(max(options.min_p, 1e-9))]
    result = np.zeros(len(logits))
    result[kept] = np.exp(scaled[kept] - scaled.max())
    return result / result.sum()


SAMPLINGS = [
    "temperature=1",
    "temperature=0.5",
    "top_k=7",
    "top_p=0.6",
    "temperature=2,min_p=0.3",
    "temperature=2,top_k=20,top_p=0.9,min_p=0.1",
]


@pytest.mark.parametrize("layout", ["", "vocab:x"])
@pytest.mark.parametrize("text", SAMPLINGS)
def test_tokens_come_as_often_as_the_softmax_says(text, layout):
    """Makes a chi-square test with a false-alarm probability of 1e-4."""
    tokens, count = 40, 4000
    logits = 1.5 * np.random.default_rng(5).normal(size=tokens).astype(np.float32)
    model = _OneDistribution(logits)
    options = DecodeOptions.parse(f"{text},batch_size={count},eos_id=-1")
    decoder = Decoder.from_model(model, options, mesh_shape="x:2" if layout else "", layout=layout)
    found = Counter(row[0].tokens[0] for row in decoder([Request(limit=1)] * count))
    expected = count * truth(options, logits)
    assert sum(found[s] for s in range(tokens) if expected[s] == 0) == 0
    big = expected >= 5
    seen = np.array([found[s] for s in range(tokens)])
    pairs = [*zip(seen[big], expected[big], strict=True), (seen[~big].sum(), expected[~big].sum())]
    chi_square = sum((s - e) ** 2 / e for s, e in pairs if e > 0)
    freedom = sum(e > 0 for _, e in pairs) - 1
    # The Wilson-Hilferty approximation of the quantile, at 3.72 standard deviations.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < limit


class _OneDistribution(TableModel):
    """A model with the same logits after any tokens."""

    def __init__(self, logits: np.ndarray) -> None:
        table = np.broadcast_to(logits, [VOCAB, VOCAB, len(logits)])
        super().__init__(table, tokens=len(logits))


def test_logits_that_are_not_numbers_are_refused():
    decoder = Decoder.from_model(_OneDistribution(np.full(8, np.nan, np.float32)), DecodeOptions())
    with pytest.raises(ValueError, match="logits are NaN"):
        decoder([Request(limit=2)])
