"""Causal attention: the composed computation's numbers, in every layout it allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp import mtf
from t2tp.ops.attention import causal_attention
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("data:4", "batch:data"),
    ("model:4", "heads:model"),
    ("data:2;model:2", "batch:data;heads:model"),
    ("data:2;model:4", "batch:data;heads:model"),
    ("model:2;data:2", "batch:model;heads:data"),
]
# One segment; several and padding; a segment a token; nothing but padding.
SEGMENTS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 0], [1, 2, 3, 4, 5, 6], [0] * 6])


def make_inputs(batch=4, heads=4, length=6, d_kv=8, scale=1.5):
    random = np.random.default_rng(0)
    shape = f"batch:{batch};heads:{heads};length:{length};d_kv:{d_kv}"
    arrays = random.normal(size=(3, batch, heads, length, d_kv)) * [
        [[[[scale]]]],
        [[[[1]]]],
        [[[[1]]]],
    ]
    segments = SEGMENTS[np.arange(batch) % 4][:, np.arange(length) % 6]
    inputs = {name: (shape, array) for name, array in zip("qkv", arrays, strict=True)}
    return inputs | {"segments": (f"batch:{batch};length:{length}", segments)}


def composed(q, k, v, segments):
    """Each position's sum over those before it, and itself, in its segment."""
    segments = segments.numpy()
    length = segments.shape[1]
    is_visible = np.array(
        [
            [[s[m] == s[t] and m <= t for m in range(length)] for t in range(length)]
            for s in segments
        ]
    )
    scores = tf.einsum("bhtd,bhmd->bhtm", q, k) / math.sqrt(q.shape[-1])
    scores = tf.where(is_visible[:, None], scores, -math.inf)
    return tf.einsum("bhtm,bhmd->bhtd", tf.nn.softmax(scores), v)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_composed_value_and_gradients(mesh_shape, layout):
    inputs = make_inputs()
    values = with_gradients(causal_attention, inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed, inputs), 2e-6)


def test_bfloat16_softmax_is_in_float32():
    """Rounded to bfloat16: scores up to 8, weights, result, and in the gradients sums
    of products of those; together a few hundredths of the largest element."""
    inputs = make_inputs()
    layout = "batch:data;heads:model"
    values = with_gradients(causal_attention, inputs, "data:2;model:2", layout, tf.bfloat16)
    assert_close(values, in_float64(composed, inputs, tf.bfloat16), 0.03)


@pytest.mark.parametrize("mesh_shape", ["", "model:2"])
def test_extreme_scores_stay_finite_and_see_nothing_masked(mesh_shape):
    inputs = make_inputs(scale=1e4)
    values = with_gradients(causal_attention, inputs, mesh_shape, "heads:model")
    for name, value in values.items():
        assert np.isfinite(value).all(), name
    wanted = in_float64(composed, inputs)
    # Weights are 0 or 1: gradients by q and k are a float32 rounding of nothing.
    assert_close(
        {name: values[name] for name in ("y", "d_v")},
        {name: wanted[name] for name in ("y", "d_v")},
        2e-6,
    )


def test_what_is_masked_has_no_influence_at_all():
    inputs = make_inputs()
    reference = with_gradients(causal_attention, inputs, "model:2", "heads:model")["y"]
    changed = {name: (shape, array.copy()) for name, (shape, array) in inputs.items()}
    # Row 1 of the segments is 1 1 2 2 2 0: nobody before position 3 sees it, nor does the padding.
    for name in "kv":
        changed[name][1][1, :, 3] += 100.0
    y = with_gradients(causal_attention, changed, "model:2", "heads:model")["y"]
    is_same = (y == reference).all(axis=(1, 3))
    assert is_same[1].tolist() == [True, True, True, False, False, True]
    assert is_same[[0, 2, 3]].all()


@pytest.mark.parametrize("dim", ["length", "memory_length", "d_kv"])
def test_a_dimension_that_attention_runs_along_is_refused(dim):
    with pytest.raises(t2tp.LayoutError, match=f"cannot be computed with dimension '{dim}' split"):
        with_gradients(causal_attention, make_inputs(), "a:2", f"{dim}:a")


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3), (2, 3)]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 9),
    st.integers(1, 5),
)
def test_any_shape_that_the_mesh_divides(mesh, batch, heads, length, d_kv):
    data, model = mesh
    inputs = make_inputs(batch * data, heads * model, length, d_kv)
    values = with_gradients(
        causal_attention, inputs, f"data:{data};model:{model}", "batch:data;heads:model"
    )
    wanted = in_float64(composed, inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(values[name], value, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("k_length", "segments", "said"),
    [
        (5, "batch:2;length:4", "must have one shape"),
        (4, "length:4;batch:2", "segments .* must be"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(k_length, segments, said):
    def step(mesh, given):
        q, k = (
            mtf.zeros(mesh, mtf.convert_to_shape(f"batch:2;heads:2;length:{n};d_kv:4"))
            for n in (4, k_length)
        )
        return {"y": causal_attention(q, k, q, mtf.zeros(mesh, segments, tf.int32))}

    with pytest.raises(ValueError, match=said):
        t2tp.Program(step)
