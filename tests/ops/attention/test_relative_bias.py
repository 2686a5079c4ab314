"""Relative position bias: T5's buckets, and blocks computed without the whole bias."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp.ops.attention.blocks import Block
from t2tp.ops.attention.relative_bias import Bias, distance_buckets
from tests.ops.attention.composed_attention import bucket


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 5), (64, 1000)])
def test_buckets_are_those_of_the_definition(buckets, max_distance, both_ways):
    distances = np.arange(-1200, 1200)
    wanted = [bucket(d, buckets, max_distance, both_ways) for d in distances]
    found = distance_buckets(distances, buckets, max_distance, both_ways)
    assert found.tolist() == wanted


@pytest.mark.parametrize("block", [Block(0, 6, 0, 10), Block(0, 2, 4, 6), Block(4, 2, 0, 1)])
def test_a_block_of_the_bias_and_its_gradient(block):
    random = np.random.default_rng(0)
    table = random.normal(size=(3, 8)).astype(np.float32)
    bias = Bias(tf.constant(table), 6, 10, max_distance=5, both_ways=True)
    query, key = np.ogrid[: block.queries, : block.memories]
    distances = block.memory + key - block.query - query
    number = distance_buckets(distances, 8, 5, both_ways=True)
    np.testing.assert_array_equal(bias.block(block), table[:, number])

    d_scores = random.normal(size=(2, *bias.block(block).shape)).astype(np.float32)
    by_distance = bias.with_gradient(bias.no_gradient(), block, tf.constant(d_scores))
    wanted = np.zeros([3, 8])
    for head in range(3):
        np.add.at(wanted[head], number, d_scores.sum(axis=0)[head])
    np.testing.assert_allclose(bias.table_gradient(by_distance), wanted, atol=1e-5)
