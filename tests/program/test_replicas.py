"""A copy that differs from other copies is found, and reported with its processor."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import connect
from t2tp.program.replicas import ReplicaCheck
from t2tp.program.variables import Variables, VariableSpec

LAYOUT = Layout("data:2;model:4", "batch:data;d_ff:model")


def make_variables(shape: str = "d_in:5;d_ff:8", dtype: tf.DType = tf.float32) -> Variables:
    """Returns one variable; `d_ff` is split over `model`, and each slice has two copies."""
    variables = Variables(LAYOUT, connect(LAYOUT.size))
    initializer = tf.compat.v1.ones_initializer()
    variables.create(VariableSpec("w", t2tp.Feature(shape).shape, dtype, initializer, True))
    return variables


def change(variables: Variables, pnum: int, value: object, index: tuple[int, ...] = (0, 0)) -> None:
    """Changes an element of one processor's slice."""
    part = variables["w"].slice_of(pnum)
    values = part.numpy()
    values[index] = value
    part.assign(values)


def found(variables: Variables, *chunk: int) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    return [(each.name, each.groups) for each in ReplicaCheck(variables, *chunk).mismatches()]


def test_equal_copies_are_equal():
    assert found(make_variables()) == []


DTYPES = [tf.float32, tf.float64, tf.bfloat16, tf.float16, tf.int32, tf.int64, tf.uint8, tf.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_copy_of_a_slice_that_differs_is_found(dtype):
    variables = make_variables(dtype=dtype)
    change(variables, 6, 0, (4, 1))
    assert found(variables) == [("w", ((2,), (6,)))]


def test_most_copies_are_right():
    variables = make_variables("d_in:5;d_out:2")
    change(variables, 3, 1.5)
    (mismatch,) = ReplicaCheck(variables).mismatches()
    assert mismatch.groups == ((0, 1, 2, 4, 5, 6, 7), (3,))
    said = mismatch.describe(variables.cluster)
    assert said.startswith(f"variable 'w' differs on processor 3 ({variables.cluster.devices[3]})")


@pytest.mark.parametrize(
    "value", [np.nextafter(np.float32(1), 2), -0.0, np.nan], ids=["last bit", "sign", "NaN"]
)
def test_each_bit_counts(value):
    variables = make_variables()
    for pnum in range(8):
        change(variables, pnum, 0.0 if value == 0 else 1.0)
    change(variables, 5, value)
    assert found(variables) == [("w", ((1,), (5,)))]


def test_values_that_change_places_are_found():
    variables = make_variables()
    for pnum in range(8):
        change(variables, pnum, 3.0, (0, 0) if pnum else (1, 1))
    assert found(variables) == [("w", ((0,), (4,)))]


def test_slices_longer_than_a_chunk_are_compared_to_their_end():
    variables = make_variables()
    change(variables, 1, 2.0, (4, 1))
    assert found(variables, 4) == [("w", ((1,), (5,)))]


def test_slices_that_nobody_else_has_are_not_compared():
    variables = make_variables("batch:4;d_ff:8")
    for pnum in range(8):
        change(variables, pnum, float(pnum))
    assert found(variables) == []
