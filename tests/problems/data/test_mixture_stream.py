"""The order of a mixture's rows, which must never change for runs that have begun."""

import hashlib

import numpy as np
import pytest

from t2tp.problems.data.batch_stream import ShuffledStream
from t2tp.problems.data.buckets import BucketedStream
from t2tp.problems.data.mixture_stream import ConcatenatedSource, MixtureStream, Stage
from t2tp.problems.mixture_name import proportional_parts


class Numbers:
    """Examples without features."""

    features = {}

    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def shape(self, feature):
        return ()


def examples(stream, steps):
    return np.concatenate([stream[step].examples for step in range(steps)])


def digest(stream, steps):
    return hashlib.sha256(examples(stream, steps).astype("<i8").tobytes()).hexdigest()[:16]


def test_problems_of_the_same_size_have_orders_of_their_own():
    """With 800 rows each, chance puts about 800 / 50 equal indices into the same batch."""
    source = ConcatenatedSource([Numbers(800), Numbers(800)])
    stream = MixtureStream(source, [Stage(0, (1, 1))], 32, seed=0)
    together = sum(
        len({*rows[rows < 800]} & {*(rows[rows >= 800] - 800)})
        for rows in (stream[step].examples for step in range(50))
    )
    assert together < 50


def test_the_orders_of_runs_that_have_begun_stay():
    """If a digest changes, runs that have begun read other data; a seed's type has no effect."""
    source = ConcatenatedSource([Numbers(70), Numbers(70), Numbers(30)])
    stages = [Stage(0, (3, 2, 2)), Stage(5, (1, 4, 0)), Stage(11, (1, 1, 1))]
    assert digest(MixtureStream(source, stages, 6, np.uint8(3)), 40) == "c49623e8a9746f82"
    assert digest(ShuffledStream(Numbers(70), 6, np.array(3)), 40) == "ec367806eecf4853"
    buckets = BucketedStream([(Numbers(70), 1), (Numbers(33), 2)], 4, np.int64(3))
    assert digest(buckets, 60) == "01603d37d742de40"


CASES = [
    ([2000, 400, 100], 1, 0, (20, 4, 1)),
    ([2000, 400, 100, 100], 2, 0, (5279, 2361, 1180, 1180)),  # square roots
    ([2000, 400], 1e9, 0, (1, 1)),
    ([2000, 400, 100], 1, 500, (5, 4, 1)),
    ([10**12, 3], 1, 0, (9999, 1)),  # at least one row
]


@pytest.mark.parametrize(("rows", "temperature", "max_rows", "parts"), CASES)
def test_proportions_are_those_of_t5(rows, temperature, max_rows, parts):
    assert proportional_parts(rows, temperature, max_rows) == parts
