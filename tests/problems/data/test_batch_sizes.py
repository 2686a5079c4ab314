"""Runs that are resumed with another batch size read each row of an epoch exactly once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2tp.problems.data.batch_sizes import BatchSizes
from t2tp.problems.data.batch_stream import ShuffledStream
from t2tp.problems.data.buckets import BucketedStream
from t2tp.problems.data.mixture_stream import ConcatenatedSource, MixtureStream, Stage
from tests.problems.data.test_mixture_stream import Numbers

# Pairs of (number of steps, batch size): what a run does between one resume and the next.
LEGS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=5)


def read(stream, legs):
    """Trains the legs one after the other; yields the batches."""
    step, sizes = 0, None
    for steps, batch_size in legs:
        sizes = BatchSizes.of(batch_size) if sizes is None else sizes.changed(step, batch_size)
        resumed = stream.with_batch_sizes(sizes)
        for number in range(step, step + steps):
            yield resumed[number]
        step += steps


def assert_epochs_are_whole(examples, size):
    """Checks that each epoch has every example once; the last epoch may be unfinished."""
    for begin in range(0, len(examples), size):
        epoch = examples[begin : begin + size].tolist()
        assert len({*epoch}) == len(epoch)
        assert len(epoch) < size or sorted(epoch) == list(range(size))


@given(LEGS, st.integers(1, 60))
def test_shuffled_rows_are_read_once_an_epoch(legs, size):
    stream = ShuffledStream(Numbers(size), 1, seed=3)
    examples = np.concatenate([batch.examples for batch in read(stream, legs)])
    assert_epochs_are_whole(examples, size)
    # The batch size does not change the order either.
    np.testing.assert_array_equal(examples, [stream[n].examples[0] for n in range(len(examples))])


@given(LEGS, st.lists(st.integers(1, 40), min_size=1, max_size=3), st.data())
def test_the_rows_of_each_problem_of_a_mixture_are_read_once_an_epoch(legs, sizes, data):
    source = ConcatenatedSource([Numbers(size) for size in sizes])
    shares = st.tuples(st.integers(1, 4), *(st.integers(0, 4) for _ in sizes[1:]))
    starts = data.draw(st.sets(st.integers(1, 30), max_size=3))
    stages = [Stage(step, data.draw(shares)) for step in sorted({0, *starts})]
    stream = MixtureStream(source, stages, 1, seed=3)
    rows = np.concatenate([batch.examples for batch in read(stream, legs)])
    for first, size in zip(source.first, sizes, strict=False):
        assert_epochs_are_whole(rows[(rows >= first) & (rows < first + size)] - first, size)


@given(LEGS, st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_the_rows_of_each_bucket_are_read_once_an_epoch(legs, sizes):
    sources = [Numbers(size) for size in sizes]
    stream = BucketedStream([(each, 2**n) for n, each in enumerate(sources)], 1, seed=3)
    rows: dict[int, list[int]] = {n: [] for n in range(len(sizes))}
    for batch in read(stream, legs):
        examples = batch.examples[batch.examples >= 0].tolist()
        own = rows[sources.index(batch.source)]
        assert examples and not {*own} & {*examples}
        own += examples
        # If an epoch skipped a row, the assertion above would fail in the next epoch.
        if all(len(each) == size for each, size in zip(rows.values(), sizes, strict=True)):
            for each in rows.values():
                each.clear()


@given(LEGS)
def test_the_number_of_rows_is_the_sum_of_the_batch_sizes(legs):
    sizes, step, rows = None, 0, 0
    for steps, batch_size in legs:
        sizes = BatchSizes.of(batch_size) if sizes is None else sizes.changed(step, batch_size)
        for number in range(step, step + steps):
            assert (sizes.rows_before(number), sizes.at(number)) == (rows, batch_size)
            rows += batch_size
        step += steps


def test_a_resume_from_an_earlier_step_forgets_later_changes():
    sizes = BatchSizes.of(8).changed(10, 4).changed(20, 2)
    assert sizes.changed(10, 8) == BatchSizes.of(8)
    assert sizes.changed(15, 16).changes == ((0, 8), (10, 4), (15, 16))


@pytest.mark.parametrize("step", [0, 3, 10**15])
def test_a_step_costs_the_same_wherever_it_is(step):
    sizes = BatchSizes.of(8).changed(2, 1024)
    stream = BucketedStream([(Numbers(7), 1), (Numbers(500), 2)], sizes, seed=0)
    assert len(stream[step].examples) in (8, 16, 1024, 2048)
