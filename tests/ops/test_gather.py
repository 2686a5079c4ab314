"""Gather: the rows of a table, wherever table and indices are split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp import mtf
from t2tp.ops.gather import checked_gather, gather
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("data:4", "batch:data"),
    ("model:4", "vocab:model"),
    ("data:2;model:2", "batch:data;vocab:model"),
    ("data:2;model:4", "batch:data;vocab:model"),
    ("data:2;model:4", "batch:data;d_model:model"),
    ("data:2;model:2", "vocab:data;d_model:model"),
    ("model:2;data:2", "length:data;vocab:model"),
]
# First and last id of each slice of 16 in 1, 2 and 4 parts; each several times.
BORDERS = np.array([0, 3, 4, 7, 8, 11, 12, 15])


def make_inputs(batch=8, length=4, vocab=16, d_model=8):
    table = np.random.default_rng(0).normal(size=(vocab, d_model))
    ids = np.resize(BORDERS, batch * length).reshape(batch, length) % vocab
    return {
        "table": (f"vocab:{vocab};d_model:{d_model}", table),
        "ids": (f"batch:{batch};length:{length}", ids),
    }


def ours(table, ids):
    return gather(table, ids, table.shape.get_dim_by_name("vocab"))


def composed(table, ids):
    return tf.gather(table, ids)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_rows_and_the_tables_gradient(mesh_shape, layout):
    inputs = make_inputs()
    values = with_gradients(ours, inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed, inputs), 1e-6)


def test_rows_nobody_asks_for_get_no_gradient():
    inputs = make_inputs()
    inputs["ids"] = (inputs["ids"][0], np.full((8, 4), 5))
    d_table = with_gradients(ours, inputs, "model:4", "vocab:model")["d_table"]
    assert np.flatnonzero(d_table.any(axis=1)).tolist() == [5]


def test_bfloat16_rows_are_exact_and_their_gradient_is_a_float32_sum():
    """What is rounded: the incoming gradient, each processor's sum, and the sum of two of them."""
    inputs = make_inputs()
    wanted = in_float64(composed, inputs, tf.bfloat16)
    layout = "batch:data;vocab:model"
    values = with_gradients(ours, inputs, "data:2;model:2", layout, tf.bfloat16)
    np.testing.assert_array_equal(values["y"], wanted["y"])
    assert_close(values, wanted, 3 * 2**-8)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize("layout", ["", "vocab:model"])
def test_a_row_asked_for_a_thousand_times_loses_nothing(layout, dtype):
    """A bfloat16 sum of ones would stay at 256, one of float16 at 2048."""
    inputs = make_inputs(batch=64, length=64)
    inputs["ids"] = (inputs["ids"][0], np.full((64, 64), 5))
    features = {
        name: t2tp.Feature(shape, tf.int32 if name == "ids" else dtype)
        for name, (shape, _) in inputs.items()
    }

    def step(mesh, given):
        del mesh
        return {"d": mtf.gradients([mtf.reduce_sum(ours(**given))], [given["table"]])[0]}

    program = t2tp.Program(step, features, mesh_shape="model:4", layout=layout)
    d = program({name: array for name, (_, array) in inputs.items()})["d"]
    np.testing.assert_array_equal(np.asarray(d, np.float64)[5], 4096)


def test_the_vocabulary_may_be_any_dimension_of_a_table_of_three():
    random = np.random.default_rng(1)
    table = random.normal(size=(4, 16, 3))
    inputs = {
        "table": ("heads:4;vocab:16;d_kv:3", table),
        "ids": make_inputs()["ids"],
    }

    def transposed(table, ids):
        return tf.gather(tf.transpose(table, [1, 0, 2]), ids)

    values = with_gradients(ours, inputs, "data:2;model:2", "heads:data;vocab:model")
    assert_close(values, in_float64(transposed, inputs), 1e-6)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3), (2, 3)]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_any_shape_that_the_mesh_divides(mesh, batch, length, vocab, d_model):
    data, model = mesh
    inputs = make_inputs(batch * data, length, vocab * model, d_model)
    values = with_gradients(ours, inputs, f"data:{data};model:{model}", "batch:data;vocab:model")
    assert_close(values, in_float64(composed, inputs), 1e-6)


@pytest.mark.parametrize(
    ("dim", "layout"), [("batch", "batch:a;vocab:a"), ("length", "vocab:a;length:a")]
)
def test_one_axis_cannot_split_both_ids_and_vocabulary(dim, layout):
    with pytest.raises(t2tp.LayoutError, match=f"both its dimensions '{dim}' and 'vocab'"):
        with_gradients(ours, make_inputs(), "a:2", layout)


BATCHED = [("", ""), ("x:2", "b:x"), ("x:4", "n:x"), ("x:2;y:2", "b:x;n:y"), ("x:2;y:2", "m:x;n:y")]


@pytest.mark.parametrize(("mesh_shape", "layout"), BATCHED)
def test_dimensions_that_both_have_are_batch_dimensions(mesh_shape, layout):
    random = np.random.default_rng(2)
    inputs = {
        "table": ("d:3;b:4;n:8;c:2", random.normal(size=(3, 4, 8, 2))),
        "ids": ("m:6;c:2;b:4", random.integers(0, 8, (6, 2, 4))),
    }

    def transposed(table, ids):
        table = tf.transpose(table, [3, 1, 2, 0])  # [c, b, n, d]
        rows = tf.gather(table, tf.transpose(ids, [1, 2, 0]), batch_dims=2)
        return tf.transpose(rows, [2, 0, 1, 3])  # [m, c, b, d]

    values = with_gradients(
        lambda table, ids: gather(table, ids, table.shape.get_dim_by_name("n")),
        inputs,
        mesh_shape,
        layout,
    )
    assert_close(values, in_float64(transposed, inputs), 1e-6)


def row(weights, number, dtype=tf.float32, xla=False, look_up=checked_gather):
    """Row `number` of a feature."""

    def step(mesh, features):
        del mesh
        return {"y": look_up(features["w"], features["i"], features["w"].shape.dims[0])}

    program = t2tp.Program(
        step,
        {"w": t2tp.Feature("n:4;d:2", dtype), "i": t2tp.Feature(mtf.Shape([]), tf.int64)},
        xla=xla,
    )
    return program({"w": weights, "i": np.array(number)})["y"]


@pytest.mark.parametrize("dtype", [tf.bool, tf.int32, tf.bfloat16, tf.float64])
def test_rows_of_any_dtype(dtype):
    weights = (np.arange(8).reshape(4, 2) % 3).astype(dtype.as_numpy_dtype)
    for number in range(4):
        np.testing.assert_array_equal(row(weights, number, dtype), weights[number])


@pytest.mark.parametrize("number", [-1, 4])
def test_an_index_out_of_range_is_refused_where_it_is_checked(number):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be in \[0, 4\)"):
        row(np.ones((4, 2)), number)


@pytest.mark.parametrize("number", [-1, 4])
def test_xla_which_cannot_raise_gives_what_is_in_no_table(number):
    assert np.isnan(row(np.ones((4, 2)), number, xla=True)).all()
    smallest = np.iinfo(np.int32).min
    np.testing.assert_array_equal(row(np.ones((4, 2)), number, tf.int32, xla=True), smallest)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("dtype", [tf.bool, tf.int32, tf.bfloat16, tf.float32])
def test_mesh_tensorflows_gather_gives_zeros_out_of_range(dtype, xla):
    weights = np.ones((4, 2), dtype.as_numpy_dtype)
    for number in (-1, 4, -(2**63), 2**63 - 1):
        values = row(weights, number, dtype, xla, mtf.gather)
        np.testing.assert_array_equal(values, np.zeros(2))


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_on_any_layout_rows_out_of_range_are_zero_and_have_no_gradient(mesh_shape, layout):
    inputs = make_inputs()
    ids = inputs["ids"][1] - 1  # -1 to 14
    ids[:, 1] = 16 + ids[:, 1]
    inputs["ids"] = (inputs["ids"][0], ids)

    def one_hot_product(table, ids):
        return tf.einsum("blv,vd->bld", tf.one_hot(ids, 16, dtype=table.dtype), table)

    values = with_gradients(ours, inputs, mesh_shape, layout)
    assert not values["y"][:, 1].any()
    assert_close(values, in_float64(one_hot_product, inputs), 1e-6)


def test_what_cannot_be_looked_up_is_refused():
    inputs = make_inputs()
    vocab, length = mtf.Dimension("vocab", 16), mtf.Dimension("length", 4)
    with pytest.raises(ValueError, match="has no dimension"):
        with_gradients(lambda table, ids: gather(table, ids, length), inputs)
    with pytest.raises(ValueError, match="must be integers"):
        with_gradients(lambda table, ids: gather(table, mtf.to_float(ids), vocab), inputs)


def test_the_cost_does_not_grow_with_the_table():
    """Nothing is made of the size of indices x table; the gradient has the table's."""
    n, d = mtf.Dimension("n", 1000), mtf.Dimension("d", 2)

    def step(mesh, features):
        table = mtf.get_variable(mesh, "table", mtf.Shape([n, d]))
        rows = mtf.gather(table, features["ids"], n)
        return {"rows": rows, "d": mtf.gradients([rows], [table])[0]}

    program = t2tp.Program(step, {"ids": t2tp.Feature("m:50", tf.int32)})
    sizes = [
        tensor.shape.num_elements() or 0
        for op in program.trace().graph.get_operations()
        for tensor in op.outputs
        if tensor.shape.rank is not None
    ]
    assert max(sizes) == n.size * d.size
