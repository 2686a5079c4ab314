"""Each collective against NumPy, on groups of one, two and three axes of a mesh of eight."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.mesh.cluster import connect
from t2tp.mesh.collectives import Collectives
from t2tp.mesh.joint import JointProgram
from t2tp.mesh.layout import Layout

LAYOUT = Layout("a:2;b:2;c:2")
AXES = "abc"


def traced(fn, values, layout):
    """The program of one of eight processors, with `fn(collectives, x)`, and its collectives."""
    cluster = connect(8)
    emitted = []

    @tf.function(autograph=False)
    def program(pnum, step, variables, features):
        del step, variables
        emitted.append(Collectives(layout.mesh_shape, cluster.devices, pnum))
        return {"y": fn(emitted[0], *features)}

    scalars = [tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64)]
    part = tf.TensorSpec(values[0].shape, values[0].dtype)
    return cluster, program.get_concrete_function(*scalars, [], [part]), emitted[0]


def apart(fn, values, layout=LAYOUT):
    """`fn(collectives, x)` on eight devices at once, device i with x = values[i]."""
    cluster, concrete, _ = traced(fn, values, layout)

    def call(pnum):
        with tf.device(cluster.devices[pnum]):
            given = [tf.constant(pnum), tf.constant(0, tf.int64), [], [tf.constant(values[pnum])]]
            return concrete(*given)["y"].numpy()

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(call, range(8)))


def jointly(fn, values, layout=LAYOUT):
    """The same as one program."""
    cluster, concrete, collectives = traced(fn, values, layout)
    joint = JointProgram(concrete, collectives.groups, [], cluster)
    return [outputs["y"].numpy() for outputs in joint(0, [[tf.constant(x)] for x in values])]


@pytest.fixture(params=[apart, jointly], ids=lambda how: how.__name__)
def run_everywhere(request):
    return request.param


def group_of(pnum, axes):
    """Processors that differ from `pnum` only along `axes`, in order."""
    place = LAYOUT.coordinates(pnum)
    return [
        other
        for other in range(8)
        if all(
            LAYOUT.coordinates(other)[a] == place[a] for i, a in enumerate(AXES) if i not in axes
        )
    ]


def random_values(shape, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 9, shape).astype(dtype) for _ in range(8)]


ALL_AXES = [axes for n in (1, 2, 3) for axes in itertools.combinations(range(3), n)]


@pytest.mark.parametrize("axes", ALL_AXES)
@pytest.mark.parametrize(
    ("merge_op", "reduction"), [("Add", np.sum), ("Max", np.max), ("Min", np.min)]
)
def test_allreduce(run_everywhere, axes, merge_op, reduction):
    values = random_values([3, 5])
    results = run_everywhere(lambda c, x: c.allreduce(x, axes, merge_op), values)
    for pnum, result in enumerate(results):
        wanted = reduction([values[p] for p in group_of(pnum, axes)], axis=0)
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("shape", [[], [1], [7], [1023], [1024], [2, 513]])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, tf.bfloat16.as_numpy_dtype])
def test_allreduce_of_any_size_and_type(run_everywhere, shape, dtype):
    values = random_values(shape, dtype)
    results = run_everywhere(lambda c, x: c.allreduce(x, [0, 1, 2], "Add"), values)
    wanted = np.sum([v.astype(np.float32) for v in values], axis=0)
    for result in results:
        np.testing.assert_array_equal(result.astype(np.float32), wanted)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize(("merge_op", "reduction"), [("Add", np.sum), ("Max", np.max)])
def test_integers_that_tensorflow_does_not_reduce(run_everywhere, dtype, merge_op, reduction):
    values = [np.array([pnum, np.iinfo(dtype).max - pnum], dtype) for pnum in range(8)]
    results = run_everywhere(lambda c, x: c.allreduce(x, [0, 1, 2], merge_op), values)
    wanted = reduction(values, axis=0, dtype=dtype) if merge_op == "Add" else np.max(values, axis=0)
    for result in results:
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("concat_axis", [0, 1])
def test_allgather(run_everywhere, axis, concat_axis):
    values = random_values([2, 3])
    results = run_everywhere(lambda c, x: c.allgather(x, axis, concat_axis), values)
    for pnum, result in enumerate(results):
        group = [values[p] for p in group_of(pnum, [axis])]
        np.testing.assert_array_equal(result, np.concatenate(group, concat_axis))


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize(("split_axis", "concat_axis"), [(0, 1), (1, 0), (0, 0)])
def test_alltoall(run_everywhere, axis, split_axis, concat_axis):
    values = random_values([4, 6])
    results = run_everywhere(lambda c, x: c.alltoall(x, axis, split_axis, concat_axis), values)
    for pnum, result in enumerate(results):
        group = group_of(pnum, [axis])
        mine = group.index(pnum)
        parts = [np.split(values[p], 2, split_axis)[mine] for p in group]
        np.testing.assert_array_equal(result, np.concatenate(parts, concat_axis))


@pytest.mark.parametrize("source", [[1, 0], [None, 0], [1, 1], [None, None], [0, 1]])
@pytest.mark.parametrize("axis", range(3))
def test_permute(run_everywhere, axis, source):
    values = random_values([2, 3])
    results = run_everywhere(lambda c, x: c.permute(x, axis, source), values)
    for pnum, result in enumerate(results):
        group = group_of(pnum, [axis])
        from_member = source[group.index(pnum)]
        wanted = 0 * values[0] if from_member is None else values[group[from_member]]
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("mesh_shape", "axis", "source", "moved"),
    [
        ("a:8", 0, [7, 0, 1, 2, 3, 4, 5, 6], ("permute", 2)),
        ("a:8", 0, [None, 0, 1, 2, 3, 4, 5, 6], ("permute", 2)),
        ("a:8", 0, [1, 2, 0, 4, 5, 3, 6, None], ("permute", 3)),  # rings of odd length
        ("a:2;b:4", 1, [1, 2, 3, 0], ("permute", 2)),
        ("a:4;b:2", 0, [2, 3, 0, 1], ("permute", 1)),
        ("a:8", 0, [0, 0, 0, 0, 0, 0, 0, 7], ("allgather", 1)),  # one part for many
        ("a:2;b:4", 1, [2, 2, 2, 2], ("broadcast", 1)),
    ],
)
def test_permute_exchanges_in_pairs(run_everywhere, mesh_shape, axis, source, moved):
    layout = Layout(mesh_shape)
    values = random_values([2, 3])
    logs = []

    def permute(collectives, x):
        y = collectives.permute(x, axis, source)
        logs.append(collectives.log)
        return y

    results = run_everywhere(permute, values, layout)
    name = layout.mesh_shape.dims[axis].name
    for pnum, result in enumerate(results):
        place = layout.coordinates(pnum)
        from_member = source[place[name]]
        members = [p for p in range(8) if layout.coordinates(p) == {**place, name: from_member}]
        wanted = values[members[0]] if members else 0 * values[0]
        np.testing.assert_array_equal(result, wanted)
    assert [c.kind for c in logs[0]] == [moved[0]] * moved[1]
    assert {c.bytes for c in logs[0]} == {2 * 3 * 4}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32"])
@pytest.mark.parametrize(("axis", "scatter_axis"), [(0, 0), (1, 1), (2, 0)])
def test_reducescatter(run_everywhere, axis, scatter_axis, dtype):
    values = random_values([4, 6], np.dtype(tf.as_dtype(dtype).as_numpy_dtype))
    results = run_everywhere(lambda c, x: c.reducescatter(x, axis, scatter_axis), values)
    for pnum, result in enumerate(results):
        group = group_of(pnum, [axis])
        total = sum(values[p] for p in group)
        np.testing.assert_array_equal(result, np.split(total, 2, scatter_axis)[group.index(pnum)])


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint32",
        "uint64",
        "bfloat16",
        "float16",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_any_dtype_is_moved_bit_for_bit(run_everywhere, dtype):
    values = random_values([4, 2], np.dtype(tf.as_dtype(dtype).as_numpy_dtype))
    gathered = run_everywhere(lambda c, x: c.allgather(x, 2, 0), values)
    exchanged = run_everywhere(lambda c, x: c.alltoall(x, 2, 0, 1), values)
    permuted = run_everywhere(lambda c, x: c.permute(x, 2, [1, None]), values)
    np.testing.assert_array_equal(gathered[0], np.concatenate(values[:2]))
    np.testing.assert_array_equal(exchanged[1], np.concatenate([v[2:] for v in values[:2]], 1))
    np.testing.assert_array_equal(permuted[0], values[1])
    np.testing.assert_array_equal(permuted[1], np.zeros_like(values[1]))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_are_summed_and_sent_to_all(run_everywhere, dtype):
    values = [
        np.array([[complex(pnum, -7), complex(0.5, pnum**2)]] * 2, dtype) for pnum in range(8)
    ]
    scalars = [value[0, 1] for value in values]
    summed = run_everywhere(lambda c, x: c.allreduce(x, [0, 1, 2], "Add"), values)
    scalar = run_everywhere(lambda c, x: c.allreduce(x, [0, 2], "Add"), scalars)
    scattered = run_everywhere(lambda c, x: c.reducescatter(x, 0, 1), values)
    broadcast = run_everywhere(lambda c, x: c.permute(x, 2, [1, 1]), values)
    for result in summed:
        np.testing.assert_array_equal(result, sum(values), strict=True)
    np.testing.assert_array_equal(scalar[2], sum(scalars[p] for p in (2, 3, 6, 7)))
    np.testing.assert_array_equal(scattered[5], (values[1] + values[5])[:, 1:], strict=True)
    np.testing.assert_array_equal(broadcast[0], values[1], strict=True)


def test_complex_numbers_have_no_order():
    with pytest.raises(ValueError, match="complex64 tensors have a sum, but no max"):
        traced(lambda c, x: c.allreduce(x, [0], "Max"), random_values([2], np.complex64), LAYOUT)


@pytest.mark.parametrize("source", [[1, 1], [1, 0], [None, 0]])
def test_no_bit_of_bfloat16_is_lost(run_everywhere, source):
    """Though it is moved as float16, where the first two are NaN, or as a part of a sum."""
    dtype = tf.bfloat16.as_numpy_dtype
    values = [np.array([2.68e36, -2.68e36, 1.0, 1e-38], dtype) + 0 * i for i in range(8)]
    moved = run_everywhere(lambda c, x: c.permute(x, 2, source), values)
    if source[0] is not None:
        np.testing.assert_array_equal(moved[0].view(np.uint16), values[0].view(np.uint16))
    np.testing.assert_array_equal(moved[1].view(np.uint16), values[0].view(np.uint16))


def test_axes_of_size_one_cost_nothing():
    with tf.Graph().as_default():
        pnum = tf.compat.v1.placeholder(tf.int32, [])
        shape = mtf.Shape([mtf.Dimension("a", 1), mtf.Dimension("b", 4)])
        collectives = Collectives(shape, ["cpu"] * 4, pnum)
        x = tf.zeros([4, 4])
        assert collectives.allreduce(x, [0], "Add") is x
        assert collectives.log == []
