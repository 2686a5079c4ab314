"""A save in the background waits for the one before it, and writes copies of the variables."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from t2tp.checkpoint import Slice
from t2tp.checkpoint.background import BackgroundWorker, copy_to_host
from tests.checkpoint.samples import DTYPES
from tests.patience import PATIENCE


def test_a_second_task_waits_for_the_first():
    done, go = [], threading.Event()
    background = BackgroundWorker("test")
    background.start(lambda: (go.wait(PATIENCE), done.append(1)))
    assert background.is_busy
    threading.Timer(0.05, go.set).start()
    background.start(lambda: done.append(2))
    assert done[0] == 1
    background.wait()
    assert done == [1, 2]
    assert not background.is_busy


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (3, 2), (0, 2)])
def test_a_copy_keeps_its_value_when_the_variable_changes(dtype, shape):
    variable = tf.Variable(tf.cast(tf.ones(shape), dtype))
    whole = Slice.full("v", shape, dtype)
    ((part, value),) = copy_to_host([(whole, variable)])
    assert not np.shares_memory(value._numpy(), variable.read_value()._numpy())
    variable.assign(tf.cast(tf.zeros(shape), dtype))
    assert part == whole
    assert value.dtype == dtype
    np.testing.assert_array_equal(tf.cast(value, tf.int32), tf.ones(shape, tf.int32))
