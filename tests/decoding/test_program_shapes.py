"""Batches are decoded by programs of a few lengths."""

import itertools
import random

import pytest

from t2tp.decoding.decoder import ProgramShapes


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_of_lengths_costs_less(seed):
    draw = random.Random(seed)
    traced = {(each,) for each in (8, 16, 64) if draw.random() < 0.3}
    lengths = [(draw.choice([8, 16, 32, 64]),) for _ in range(draw.randint(1, 12))]
    shapes = ProgramShapes(rows=4, tracing_tokens=500)
    shapes._traced = set(traced)

    def cost(padded: dict[tuple, tuple]) -> int:
        programs = {padded[each] for each in lengths} - traced
        return 4 * sum(sum(padded[each]) for each in lengths) + 500 * len(programs)

    sizes = sorted(set(lengths))
    choices = [
        dict(zip(sizes, chosen, strict=True))
        for chosen in itertools.product({*sizes, *traced}, repeat=len(sizes))
        if all(long >= short for long, short in zip(chosen, sizes, strict=True))
    ]
    assert cost(shapes._padded(lengths)) == min(map(cost, choices))


def test_pairs_of_lengths_share_a_program_that_is_long_enough_for_each():
    shapes = ProgramShapes(rows=1, tracing_tokens=500)
    assert set(shapes._padded([(8, 48), (16, 32), (900, 950)]).values()) == {(16, 48), (900, 950)}
    assert shapes._padded([(12, 40)]) == {(12, 40): (16, 48)}
    assert shapes._padded([(20, 40)] * 2) == {(20, 40): (20, 40)}
    assert shapes._padded([(12, 40)]) == {(12, 40): (20, 40)}
    assert ProgramShapes(1, 0)._padded([(8, 48), (16, 32)]) == {
        (8, 48): (8, 48),
        (16, 32): (16, 32),
    }
