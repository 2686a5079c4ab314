"""The lengths of the programs that score rows."""

import itertools
import random

import pytest

from t2tp.decoding import scoring
from t2tp.mesh.layout import Layout


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_of_lengths_costs_less(seed, monkeypatch):
    monkeypatch.setattr(scoring, "_TRACING_TOKENS", 500)
    draw = random.Random(seed)
    traced = {each for each in (8, 16, 64) if draw.random() < 0.3}
    lengths = [draw.choice([8, 16, 32, 64]) for _ in range(draw.randint(1, 12))]
    layout = Layout.from_arguments("", "")
    scorer = scoring.Scorer(lambda *_: {}, layout, max_length=64, batch_size=4)
    scorer._traced = set(traced)

    def cost(padded: dict[int, int]) -> int:
        programs = {padded[each] for each in lengths} - traced
        return 4 * sum(padded[each] for each in lengths) + 500 * len(programs)

    sizes = sorted(set(lengths))
    choices = [
        dict(zip(sizes, chosen, strict=True))
        for chosen in itertools.product({*sizes, *traced}, repeat=len(sizes))
        if all(long >= short for long, short in zip(chosen, sizes, strict=True))
    ]
    assert cost(scorer._padded_lengths(lengths)) == min(map(cost, choices))
