"""Equal constants of a graph become one node where the program stays the same."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.config import flags

import t2tp
from t2tp import mtf
from t2tp.lowering.fast_graph import fast_graph


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


DIFFERENT = [(1, 1.0), (0.0, -0.0), (1, [1]), ([1, 2], [[1, 2]]), (np.float32(2), np.float64(2))]


@pytest.mark.parametrize(
    ("one", "other"),
    DIFFERENT,
    ids=["integer and float", "sign of zero", "number and list", "shapes", "dtypes"],
)
def test_different_ones_stay_different(graph, one, other):
    with fast_graph():
        values = [tf.constant(one), tf.constant(other)]
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run(values)
    for value, expected in zip(found, (one, other), strict=True):
        assert value.shape == np.shape(expected)
        assert np.array_equal(np.signbit(value), np.signbit(expected))
    assert values[0].dtype == tf.convert_to_tensor(one).dtype or one is other
    assert sum(op.type == "Const" for op in graph.get_operations()) >= 2


def test_equal_bytes_of_different_dtypes_stay_different(graph):
    dtypes = [tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.int4]
    with fast_graph():
        made = [tf.constant(np.zeros(1, dtype.as_numpy_dtype)) for dtype in dtypes]
    assert [x.dtype for x in made] == dtypes


def test_tensorflow_is_as_before_after_an_error_too(graph):
    in_cpp = flags.config().graph_building_optimization
    with pytest.raises(RuntimeError), fast_graph():
        assert in_cpp.value()
        one = tf.constant(1)
        two = tf.constant(2)
        raise RuntimeError
    assert not in_cpp.value()
    after = tf.constant(3)
    lines = [[frame.lineno for frame in each.op.traceback] for each in (one, two, after)]
    assert lines[0] == lines[1] != lines[2]


def test_those_that_wait_for_others_or_are_of_another_device_are_their_own(graph):
    with fast_graph():
        first = tf.constant(3)
        with tf.control_dependencies([tf.compat.v1.placeholder(tf.int32, [])]):
            waits = tf.constant(3)
        with tf.device("/device:CPU:1"):
            elsewhere = tf.constant(3)
        again = tf.constant(3)
    assert again is first
    assert len({first.op, waits.op, elsewhere.op}) == 3
    assert (first.op.control_inputs, first.device) == ([], "")


def test_a_variable_that_is_only_assigned_to_is_not_read():
    dims = mtf.Shape([mtf.Dimension("d", 4)])

    def step(mesh, features):
        read, written = (
            mtf.get_variable(mesh, name, dims, initializer=tf.zeros_initializer())
            for name in ("read", "written")
        )
        mtf.assign(written, read + features["x"])
        return {"y": read * 2.0}

    program = t2tp.Program(step, {"x": t2tp.Feature("d:4")})
    program({"x": np.arange(4)})
    reads = [op for op in program.trace().graph.get_operations() if op.type == "ReadVariableOp"]
    assert len(reads) == 1
    assert program.variables["written"].numpy().tolist() == [0, 1, 2, 3]
