"""Slices are reshaped and broadcast, with no node that changes nothing."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.lowering.slice_shapes import expanded, reshaped

A, B, C = (mtf.Dimension(name, size) for name, size in (("a", 2), ("b", 3), ("c", 4)))


@pytest.mark.parametrize(
    ("sizes", "is_same"),
    [([2, 3], True), ([-1, 3], True), ([3, 2], False), ([2, 3, 1], False), ([-1], False)],
)
def test_what_has_the_shape_is_left_as_it_is(sizes, is_same):
    x = tf.constant(np.arange(6).reshape(2, 3))
    result = reshaped(x, sizes)
    np.testing.assert_array_equal(result, np.arange(6).reshape(sizes))
    assert (result is x) == is_same


@pytest.mark.parametrize(
    ("dims", "wanted", "sizes"),
    [
        ([B], [A, B, C], [1, 3, 1]),
        ([C, A], [A, B, C], [2, 1, 4]),
        ([B, A], [A, B], [2, 3]),
        ([A, B], [A, B], [2, 3]),
        ([], [A], []),
    ],
)
def test_it_broadcasts_with_slices_of_the_wanted_shape(dims, wanted, sizes):
    dims, wanted = mtf.Shape(dims), mtf.Shape(wanted)
    values = np.random.default_rng(0).normal(size=dims.to_integer_list)
    result = expanded(tf.constant(values), dims, wanted)
    assert result.shape.as_list() == sizes
    letters = "".join(dim.name for dim in dims.dims)
    in_order = "".join(dim.name for dim in wanted.dims if dim in dims.dims)
    np.testing.assert_array_equal(np.squeeze(result), np.einsum(f"{letters}->{in_order}", values))


def test_a_dimension_that_is_not_wanted_is_refused():
    with pytest.raises(ValueError, match="No new dimensions"):
        expanded(tf.zeros([2, 3]), mtf.Shape([A, B]), mtf.Shape([A, C]))


def test_it_takes_one_node():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [3])
        before = len(graph.get_operations())
        expanded(x, mtf.Shape([B]), mtf.Shape([A, B, C]))
        made = [op.type for op in graph.get_operations()[before:] if op.type != "Const"]
    assert made == ["Reshape"]


def test_sizes_may_be_known_only_when_it_runs():
    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def run(x):
        return expanded(x, mtf.Shape([C, A]), mtf.Shape([A, B, C]))

    x = tf.reshape(tf.range(8.0), [4, 2])
    np.testing.assert_array_equal(run(x), tf.transpose(x)[:, None])
