import numpy as np
import pytest
import tensorflow as tf

from t2tp.checkpoint import Slice
from t2tp.checkpoint.background import copy_to_host
from tests.checkpoint.samples import DTYPES


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (3, 2), (0, 2)])
def test_a_copy_keeps_its_value_when_the_variable_changes(dtype, shape):
    variable = tf.Variable(tf.cast(tf.ones(shape), dtype))
    whole = Slice.full("v", shape, dtype)
    ((part, value),) = copy_to_host([(whole, variable)])
    variable.assign(tf.cast(tf.zeros(shape), dtype))
    assert part == whole
    assert value.dtype == dtype
    np.testing.assert_array_equal(tf.cast(value, tf.int32), tf.ones(shape, tf.int32))


def test_a_copy_shares_no_memory_with_the_variable():
    variable = tf.Variable(tf.zeros([100, 100]))
    ((_, value),) = copy_to_host([(Slice.full("v", (100, 100), tf.float32), variable)])
    assert not np.shares_memory(value._numpy(), variable.read_value()._numpy())
