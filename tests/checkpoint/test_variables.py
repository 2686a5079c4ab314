"""Variables are restored from any checkpoint that fits, whatever its mesh and precision."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.checkpoint import latest
from t2tp.checkpoint.variables import CheckpointMismatchError, restore
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import connect
from t2tp.program.variables import Variables, VariableSpec
from tests.checkpoint.small_variables import SHAPE, save, small_variables

PRECISIONS = [tf.float32, tf.bfloat16, tf.float16]


@pytest.mark.parametrize("there", PRECISIONS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("here", PRECISIONS, ids=lambda dtype: dtype.name)
def test_values_are_restored_in_any_precision_on_any_mesh(tmp_path, there, here):
    old, new = small_variables(there, "model:4"), small_variables(here, "model:2")
    save(tmp_path, old, 1)
    restore(latest(tmp_path), new, strict=True)
    expected = tf.cast(old["w"].numpy(), here)
    np.testing.assert_array_equal(
        tf.cast(new["w"].numpy(), tf.float32), tf.cast(expected, tf.float32)
    )


def test_numbers_of_another_kind_are_refused(tmp_path):
    save(tmp_path, small_variables(), 1)
    integers = Variables(Layout(), connect(1))
    integers.create(VariableSpec("w", SHAPE, tf.int32, tf1.zeros_initializer(), True))
    with pytest.raises(CheckpointMismatchError, match="w is float32 in .* int32 in the program"):
        restore(latest(tmp_path), integers, strict=True)


def test_a_counter_whose_option_is_new_begins_at_0(tmp_path):
    save(tmp_path, small_variables(), 1)
    now, ones = small_variables(), tf1.ones_initializer()
    name = "step_guard/skipped_steps"
    count = now.create(VariableSpec(name, mtf.Shape([]), tf.float32, ones, False))
    restore(latest(tmp_path), now, strict=True)
    assert count.numpy() == 0
    now.create(VariableSpec("other", mtf.Shape([]), tf.float32, ones, False))
    with pytest.raises(CheckpointMismatchError, match="other is not in the checkpoint"):
        restore(latest(tmp_path), now, strict=True)
