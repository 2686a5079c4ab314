"""Gather: the rows of a table, wherever table and indices are split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp.ops.gather import gather
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


def test_bfloat16_rows_are_exact_and_their_gradient_is_a_bfloat16_sum():
    """Each row is asked for 4 times: 3 sums are rounded, and the incoming gradient."""
    inputs = make_inputs()
    wanted = in_float64(composed, inputs, tf.bfloat16)
    layout = "batch:data;vocab:model"
    values = with_gradients(ours, inputs, "data:2;model:2", layout, tf.bfloat16)
    np.testing.assert_array_equal(values["y"], wanted["y"])
    assert_close(values, wanted, 4 * 2**-8)


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
