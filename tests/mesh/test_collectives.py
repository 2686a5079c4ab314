"""Compares each collective with NumPy, on groups of one to three axes of eight processors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.mesh.axes import MeshAxes
from t2tp.mesh.collectives import Collectives
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import connect

LAYOUT = Layout("a:2;b:2;c:2")
AXES = "abc"


def run_everywhere(fn, values, layout=LAYOUT):
    """Runs `fn(collectives, x)` on eight devices; device i gets x = {name: values[name][i]}.

    Many collectives in one program take hardly longer than one, so `fn` returns several tensors.
    """
    cluster = connect(8)

    @tf.function(autograph=False)
    def program(pnum, features):
        collectives = Collectives(layout.axes, cluster.devices, pnum)
        return fn(collectives, dict(zip(values, features, strict=True)))

    specs = [tf.TensorSpec(x[0].shape, x[0].dtype) for x in values.values()]
    concrete = program.get_concrete_function(tf.TensorSpec([], tf.int32), specs)

    def call(pnum):
        with tf.device(cluster.devices[pnum]):
            features = [tf.constant(x[pnum]) for x in values.values()]
            outputs = concrete(tf.constant(pnum), features)
            return {name: y.numpy() for name, y in outputs.items()}

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(call, range(8)))


def random_values(shape, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 9, shape).astype(dtype) for _ in range(8)]


REDUCTIONS = {"Add": np.sum, "Max": np.max, "Min": np.min}


@pytest.mark.parametrize("dtype", [np.float32, np.int32, tf.bfloat16.as_numpy_dtype])
@pytest.mark.parametrize("on_gpus", [False, True])
def test_allreduce_of_any_size(dtype, on_gpus):
    shapes = ([], [1], [7], [1023], [1024], [2, 513], [4, 4099])
    values = {str(shape): random_values(shape, dtype) for shape in shapes}

    def sums(collectives, given):
        collectives.on_gpus |= on_gpus
        return {name: collectives.allreduce(x, [0, 1, 2], "Add") for name, x in given.items()}

    results = run_everywhere(sums, values)
    for name, parts in values.items():
        wanted = np.sum([part.astype(np.float32) for part in parts], axis=0)
        for result in results:
            np.testing.assert_array_equal(result[name].astype(np.float32), wanted, err_msg=name)


def test_integers_that_tensorflow_does_not_reduce():
    values = {
        dtype: [np.array([pnum, np.iinfo(dtype).max - pnum], dtype) for pnum in range(8)]
        for dtype in ("int8", "uint8", "int16", "uint16", "uint32", "uint64")
    }
    results = run_everywhere(
        lambda c, given: {
            f"{op} {dtype}": c.allreduce(x, [0, 1, 2], op)
            for dtype, x in given.items()
            for op in ("Add", "Max")
        },
        values,
    )
    for dtype, parts in values.items():
        for result in results:
            wanted = np.sum(parts, axis=0, dtype=dtype)
            np.testing.assert_array_equal(result[f"Add {dtype}"], wanted, strict=True)
            np.testing.assert_array_equal(result[f"Max {dtype}"], np.max(parts, axis=0))


PARTS = [(0,), (1,), (2,), (0, 1), (1, 0), (2, 0), (1, 2), (1, 2, 0)]
# The dimension that is split, and the dimension along which the parts are concatenated.
EXCHANGES = [(0, 1), (1, 0), (0, 0)]


def place(pnum, parts):
    return [LAYOUT.coordinates(pnum)[AXES[part]] for part in parts]


def group_along(pnum, parts):
    """Returns the processors along a joint axis, in order; the first part changes most slowly."""
    others = {*range(3)} - {*parts}
    group = [other for other in range(8) if place(other, others) == place(pnum, others)]
    return sorted(group, key=lambda other: place(other, parts))


def test_along_axes_and_joint_axes():
    """Compares each member's result with NumPy, also along joint axes such as b+a."""
    values = random_values([8, 8])
    axes = {str(parts): LAYOUT.axes.index(parts) for parts in PARTS}
    sources = {str(parts): [None, *range(2 ** len(parts) - 1)] for parts in PARTS}

    def collectives(c, given):
        x, results = given["x"], {}
        for name, axis in axes.items():
            results[f"place {name}"] = c.coordinate(axis)
            for op in REDUCTIONS:
                results[f"{op} {name}"] = c.allreduce(x, [axis], op)
            for concat in (0, 1):
                results[f"allgather {concat} {name}"] = c.allgather(x, axis, concat)
            for split, concat in EXCHANGES:
                results[f"alltoall {split} {concat} {name}"] = c.alltoall(x, axis, split, concat)
            results[f"reducescatter {name}"] = c.reducescatter(x, axis, 0)
            results[f"permute {name}"] = c.permute(x, axis, sources[name])
        return results

    for pnum, result in enumerate(run_everywhere(collectives, {"x": values})):
        for parts in PARTS:
            name, group = str(parts), group_along(pnum, parts)
            place, theirs = group.index(pnum), [values[p] for p in group]
            pieces = [[np.split(x, len(group), dim)[place] for x in theirs] for dim in (0, 1)]
            source = sources[name][place]
            wanted = {
                "place": place,
                "allgather 0": np.concatenate(theirs, 0),
                "allgather 1": np.concatenate(theirs, 1),
                "reducescatter": np.sum(pieces[0], axis=0),
                "permute": np.zeros_like(values[0]) if source is None else theirs[source],
            }
            wanted |= {op: reduce(theirs, axis=0) for op, reduce in REDUCTIONS.items()}
            for split, concat in EXCHANGES:
                wanted[f"alltoall {split} {concat}"] = np.concatenate(pieces[split], concat)
            for kind, value in wanted.items():
                message = f"{kind} {name} of {pnum}"
                np.testing.assert_array_equal(result[f"{kind} {name}"], value, err_msg=message)


# Mesh, axis, the member that each member's slice comes from, the logged collective, and the number
# of rounds of pairs with NCCL (0 if NCCL is not tested).
PERMUTED = [
    ("a:8", 0, [7, 0, 1, 2, 3, 4, 5, 6], "permute", 2),
    ("a:8", 0, [None, 0, 1, 2, 3, 4, 5, 6], "permute", 2),
    ("a:8", 0, [1, 2, 0, 4, 5, 3, 6, None], "permute", 3),  # odd rings; one gets nothing
    ("a:8", 0, [4, 5, 6, 7, 0, 1, 2, 3], "permute", 1),
    ("a:2;b:4", 1, [1, 2, 3, 0], "permute", 0),
    ("a:4;b:2", 0, [3, 2, 1, 0], "permute", 0),
    ("a:8", 0, [0, 0, 0, 0, 0, 0, 0, 7], "allgather", 0),  # one slice for most members
    ("a:2;b:4", 1, [2, 2, 2, 2], "broadcast", 0),
]


def permuted(mesh_shape, axis, source, nccl):
    """Returns the collectives of a permutation, and checks its values."""
    layout, values, logs = Layout(mesh_shape), random_values([2, 3]), []

    def permute(collectives, x):
        collectives._nccl = nccl
        y = collectives.permute(x["x"], axis, source)
        logs.append(collectives.log)
        return {"y": y}

    name = layout.mesh_shape.dims[axis].name
    for pnum, result in enumerate(run_everywhere(permute, {"x": values}, layout)):
        place = layout.coordinates(pnum)
        from_member = source[place[name]]
        members = [p for p in range(8) if layout.coordinates(p) == {**place, name: from_member}]
        wanted = values[members[0]] if members else 0 * values[0]
        np.testing.assert_array_equal(result["y"], wanted)
    return logs[0]


@pytest.mark.parametrize(("mesh_shape", "axis", "source", "moved", "rounds"), PERMUTED)
def test_permute_moves_a_slice_once_and_nccl_in_rounds_of_pairs(
    mesh_shape, axis, source, moved, rounds
):
    log = permuted(mesh_shape, axis, source, nccl=False)
    assert [(c.kind, c.bytes) for c in log] == [(moved, 2 * 3 * 4)]
    if rounds:
        kinds = [c.kind for c in permuted(mesh_shape, axis, source, nccl=True)]
        assert kinds == ["permute"] * rounds


def test_permute_in_a_loop_and_a_conditional():
    def ticks(c, given):
        def tick(i, x):
            moved = tf.cond(i < 3, lambda: c.permute(x, 0, [None, 0]), lambda: x)
            return i + 1, c.permute(moved + 1.0, 0, [1, 0])

        return {"y": tf.while_loop(lambda i, _: i < 4, tick, (0, given["x"]))[1]}

    values = random_values([3])
    wanted = [value.copy() for value in values]
    for i in range(4):
        if i < 3:
            wanted = [0 * values[0]] * 4 + wanted[:4]
        wanted = [x + 1 for x in wanted]
        wanted = wanted[4:] + wanted[:4]
    for result, value in zip(run_everywhere(ticks, {"x": values}), wanted, strict=True):
        np.testing.assert_array_equal(result["y"], value)


@pytest.mark.slow
def test_any_dtype_is_moved_and_summed_bit_for_bit():
    summed = ("bfloat16", "float16", "float32", "float64", "int32", "complex64", "complex128")
    dtypes = ("bool", "int8", "uint8", "int16", "uint32", "uint64", *summed)
    values = {
        dtype: random_values([4, 2], np.dtype(tf.as_dtype(dtype).as_numpy_dtype))
        for dtype in dtypes
    }
    for dtype in ("complex64", "complex128"):
        values[dtype] = [x * (1 - 2j) for x in values[dtype]]

    def move(c, given):
        moved = {}
        for dtype, x in given.items():
            moved[f"{dtype} gathered"] = c.allgather(x, 2, 0)
            moved[f"{dtype} exchanged"] = c.alltoall(x, 2, 0, 1)
            moved[f"{dtype} permuted"] = c.permute(x, 2, [1, None])
            moved[f"{dtype} sent to all"] = c.permute(x, 2, [1, 1])
            if dtype in summed:
                moved[f"{dtype} summed"] = c.allreduce(x, [2], "Add")
                moved[f"{dtype} scattered"] = c.reducescatter(x, 2, 1)
        return moved

    results = run_everywhere(move, values)
    for dtype, x in values.items():
        wanted = {
            (0, "gathered"): np.concatenate(x[:2]),
            (1, "exchanged"): np.concatenate([part[2:] for part in x[:2]], 1),
            (0, "permuted"): x[1],
            (1, "permuted"): np.zeros_like(x[1]),
        }
        for pnum in (0, 1):
            wanted[pnum, "sent to all"] = x[1]
            if dtype in summed:
                wanted[pnum, "summed"] = x[0] + x[1]
                wanted[pnum, "scattered"] = (x[0] + x[1])[:, pnum : pnum + 1]
        for (pnum, how), value in wanted.items():
            found = results[pnum][f"{dtype} {how}"]
            np.testing.assert_array_equal(found, value, strict=True, err_msg=f"{dtype} {how}")


def test_complex_numbers_have_no_order():
    with pytest.raises(ValueError, match="complex64 tensors have a sum, but no max"):
        run_everywhere(
            lambda c, x: {"y": c.allreduce(x["x"], [0], "Max")},
            {"x": random_values([2], np.complex64)},
        )


def test_no_bit_of_bfloat16_is_lost():
    """The bits move as float16, or as an addend of a sum.

    Read as float16, the bits of the first two values are NaN.
    """
    dtype = tf.bfloat16.as_numpy_dtype
    value = np.array([2.68e36, -2.68e36, 1.0, 1e-38], dtype)
    sources = {"to all": [1, 1], "exchanged": [1, 0], "to one": [None, 0]}
    results = run_everywhere(
        lambda c, x: {name: c.permute(x["x"], 2, source) for name, source in sources.items()},
        {"x": [value] * 8},
    )
    for name, source in sources.items():
        for pnum in (0, 1):
            if source[pnum] is not None:
                moved = results[pnum][name]
                np.testing.assert_array_equal(moved.view(np.uint16), value.view(np.uint16))


def test_axes_of_size_one_cost_nothing():
    with tf.Graph().as_default():
        pnum = tf.compat.v1.placeholder(tf.int32, [])
        shape = mtf.Shape([mtf.Dimension("a", 1), mtf.Dimension("b", 4)])
        collectives = Collectives(MeshAxes(shape), ["cpu"] * 4, pnum)
        x = tf.zeros([4, 4])
        assert collectives.allreduce(x, [0], "Add") is x
        assert collectives.log == []
