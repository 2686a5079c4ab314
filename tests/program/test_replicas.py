"""A copy that differs from other copies is found, and reported with its processor."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import connect
from t2tp.program.replicas import CHUNK, ReplicaCheck
from t2tp.program.variables import Variables, VariableSpec

LAYOUT = Layout("data:2;model:4", "batch:data;d_ff:model")


def changed(
    changes: list[tuple], shape: str = "d_in:5;d_ff:8", dtype: tf.DType = tf.float32
) -> Variables:
    """Returns a variable of ones after changes of single elements.

    `d_ff` is split over `model`, and each slice has two copies. A change has a processor, a value
    and, unless the first element of the slice is changed, an index.
    """
    variables = Variables(LAYOUT, connect(LAYOUT.size))
    initializer = tf.compat.v1.ones_initializer()
    variables.create(VariableSpec("w", t2tp.Feature(shape).shape, dtype, initializer, True))
    for pnum, value, *index in changes:
        part = variables["w"].slice_of(pnum)
        values = part.numpy()
        values[tuple(index) or (0, 0)] = value
        part.assign(values)
    return variables


DTYPES = [tf.float32, tf.float64, tf.bfloat16, tf.float16, tf.int32, tf.int64, tf.uint8, tf.bool]
# Changes, options of `changed`, and the groups of processors with equal copies.
CHANGES: dict[str, tuple[list[tuple], dict, list]] = {
    "equal": ([], {}, []),
    **{dtype.name: ([(6, 0, 4, 1)], {"dtype": dtype}, [((2,), (6,))]) for dtype in DTYPES},
    "last bit": ([(5, np.nextafter(np.float32(1), 2))], {}, [((1,), (5,))]),
    "sign": ([*((pnum, 0.0) for pnum in range(8)), (5, -0.0)], {}, [((1,), (5,))]),
    "NaN": ([(5, np.nan)], {}, [((1,), (5,))]),
    "places": ([(0, 3.0, 1, 1), *((pnum, 3.0) for pnum in range(1, 8))], {}, [((0,), (4,))]),
    "only copies": ([(pnum, pnum) for pnum in range(8)], {"shape": "batch:4;d_ff:8"}, []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_copies_of_a_slice_that_differ_are_found(name):
    changes, options, groups = CHANGES[name]
    variables = changed(changes, **options)
    for chunk in (4, CHUNK):  # Slices that are longer than a chunk are compared to their end.
        found = ReplicaCheck(variables, chunk).mismatches()
        assert [(each.name, each.groups) for each in found] == [("w", each) for each in groups]


def test_most_copies_are_right():
    variables = changed([(3, 1.5)], "d_in:5;d_out:2")
    (mismatch,) = ReplicaCheck(variables).mismatches()
    assert mismatch.groups == ((0, 1, 2, 4, 5, 6, 7), (3,))
    said = mismatch.describe(variables.cluster)
    assert said.startswith(f"variable 'w' differs on processor 3 ({variables.cluster.devices[3]})")
