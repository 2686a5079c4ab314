"""Attention with its length and its memory split: what one device computes, on any mesh."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.mesh.collectives import head_and_tail
from t2tp.ops.attention import blockwise
from t2tp.ops.attention.api import attention
from t2tp.ops.attention.blocks import Keys, Queries
from t2tp.ops.attention.mask import Mask
from tests.ops.attention.attention_cases import (
    METHODS,
    OPTIONS,
    make_composed,
    make_inputs,
    make_ours,
    set_block_sizes,
)
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

# Of a memory that has a name of its own.
MEMORY_LAYOUTS = [
    ("a:2", "length:a"),
    ("a:2", "memory:a"),
    ("a:2", "length:a;memory:a"),
    ("a:2;b:2", "length:a;memory:b"),
    ("a:2;b:2", "batch:b;length:a;memory:a"),
]
SHARED_LAYOUTS = [
    ("a:2;b:2", "length:a;memory:a;heads:b;kv_heads:b"),
    ("a:2;b:2", "length:a;memory:a;heads:b"),
    ("a:2;b:2", "length:a;memory:b;heads:b"),
    ("a:2;b:2", "length:a;memory:b;kv_heads:a"),
    ("a:2;b:2", "length:b;memory:b;kv_heads:a"),
    ("a:2;b:2", "length:b;memory:a;heads:a"),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that slices of a few positions are longer than a block."""
    set_block_sizes(monkeypatch, queries=4, keys=4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("mesh_shape", "layout"), MEMORY_LAYOUTS)
def test_length_and_memory_may_be_split_each_in_its_own_way(mesh_shape, layout, method):
    """Rows of segments 3 to 6 see nothing of the memory."""
    inputs = make_inputs(memory=14, segments=True, bias=True)
    values = with_gradients(make_ours(method), inputs, mesh_shape, layout)
    assert_close(values, in_float64(make_composed(), inputs), 3e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), MEMORY_LAYOUTS[:4])
def test_segments_of_the_queries_serve_for_a_memory_that_is_split_otherwise(mesh_shape, layout):
    inputs = make_inputs(memory=10, segments=True)
    del inputs["memory_segments"]
    options = {"causal": True, "window": 4}
    values = with_gradients(make_ours("blockwise", **options), inputs, mesh_shape, layout)
    assert_close(values, in_float64(make_composed(**options), inputs), 3e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("mesh_shape", "layout"), SHARED_LAYOUTS)
def test_heads_that_share_keys_and_values(mesh_shape, layout, method):
    options = {"causal": True, "bias": True}
    inputs = make_inputs(heads=8, kv_heads=2, memory=10, **options)
    values = with_gradients(make_ours(method, **options), inputs, mesh_shape, layout)
    assert_close(values, in_float64(make_composed(**options), inputs), 3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 6, 8, 14, 22])
def test_slices_may_be_shorter_or_longer_than_a_block(length):
    """Of 1, 3, 4, 7 and 11 positions, in blocks of at most 4."""
    options = OPTIONS["window_segments_bias"]
    inputs = make_inputs(length=length, **options)
    ours = make_ours("blockwise", **options)
    values = with_gradients(ours, inputs, "seq:2", "length:seq")
    assert_close(values, in_float64(make_composed(**options), inputs), 3e-6)


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16(method):
    options = OPTIONS["causal_segments_bias"]
    inputs = make_inputs(**options)
    ours = make_ours(method, **options)
    values = with_gradients(ours, inputs, "seq:2", "length:seq", tf.bfloat16)
    assert_close(values, in_float64(make_composed(**options), inputs, tf.bfloat16), 0.03)


def collectives(layout, backward, memory="length:8", segments=False, layers=1):
    """Kind and axes -> how many and how many bytes, of a float32 q [2, 4, 8, 4] and such k, v."""
    features = {
        "q": t2tp.Feature("batch:2;heads:4;length:8;d_kv:4"),
        "k": t2tp.Feature(f"batch:2;heads:4;{memory};d_kv:4"),
        "v": t2tp.Feature(f"batch:2;heads:4;{memory};d_kv:4"),
    }
    if segments:
        features["segments"] = t2tp.Feature("batch:2;length:8", tf.int32)

    def step(mesh, given):
        del mesh
        y = given["q"]
        for _ in range(layers):
            y = attention(y, given["k"], given["v"], segments=given.get("segments"))
        outputs = {"y": y}
        if backward:
            learned = [given[name] for name in "qkv"]
            outputs |= zip("qkv", mtf.gradients([y], learned), strict=True)
        return outputs

    return t2tp.Program(step, features, mesh_shape="a:2;b:2", layout=layout).collectives()


def test_keys_and_values_are_gathered_and_their_gradients_scattered():
    half = 4 * 2 * 4 * 4 * 4
    gather, scatter = ("allgather", ("a",)), ("reducescatter", ("a",))
    assert collectives("length:a", False) == {gather: (2, 2 * half)}
    assert collectives("length:a", True) == {gather: (4, 4 * half), scatter: (2, 4 * half)}
    # The heads that b splits are not moved.
    split = collectives("length:a;heads:b", True)
    assert split == {gather: (4, 2 * half), scatter: (2, 2 * half)}


def test_only_a_memory_that_is_split_is_gathered():
    whole = 4 * 2 * 4 * 8 * 4
    memory = "memory:8"
    assert collectives("length:a", False, memory) == {}
    assert collectives("length:a", True, memory) == {("allreduce", ("a",)): (1, 2 * whole)}
    gathered = {("allgather", ("b",)): (4, 2 * whole)}
    assert collectives("memory:b", True, memory) == gathered
    both = {**gathered, ("allreduce", ("a",)): (1, whole)}
    assert collectives("length:a;memory:b", True, memory) == both


def test_segments_are_gathered_once_for_all_layers():
    ((count, _),) = collectives("length:a", False, segments=True, layers=3).values()
    assert count == 2 * 3 + 1


@pytest.mark.parametrize(
    ("options", "unseen"),
    [({"causal": True}, slice(8, None)), ({"window": 5}, slice(12, None))],
    ids=["causal", "window"],
)
def test_what_no_query_of_a_slice_sees_is_not_computed(monkeypatch, options, unseen):
    """The first of three slices does not come across a NaN there, which it would through zeros."""
    monkeypatch.setattr(blockwise, "_QUERIES", 8)
    array = np.random.default_rng(0).normal(size=(1, 24, 4))
    inputs = {name: ("heads:1;length:24;d_kv:4", array.copy()) for name in "qkv"}
    for name in "kv":
        inputs[name][1][:, unseen] = np.nan
    ours = make_ours("blockwise", **options)
    values = with_gradients(ours, inputs, "seq:3", "length:seq")
    wanted = with_gradients(ours, {name: (s, array) for name, (s, _) in inputs.items()})
    for name in ("y", "d_q"):
        np.testing.assert_allclose(values[name][0, :8], wanted[name][0, :8], atol=1e-5)
        assert np.isnan(values[name][0, 16:]).all()


def halves_of(place, count, size=16):
    """The two parts of the slice at a place, in head-tail order."""
    return [Queries(size // 2, 2 * count, half) for half in head_and_tail(place, count)]


def blocks_of(queries, keys):
    """How many blocks of scores causal attention computes: those on the diagonal are whole ones."""
    begin, end = blockwise._visible_blocks(Mask(queries, keys, causal=True), 4, 4)
    return int(np.maximum(end - begin, 0).sum())


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_causal_attention_is_equal_work_for_all_processors(count):
    keys = Keys(16 * count)
    work = [
        sum(blocks_of(part, keys) for part in halves_of(place, count)) for place in range(count)
    ]
    assert len(set(work)) == 1
    blocks = 4 * count
    assert sum(work) == blocks * (blocks + 1) // 2


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_each_step_of_a_ring_is_equal_work_for_all_processors(count):
    """And all steps together are what the gathered memory is."""
    steps = np.zeros([count, count], int)
    for place, step in np.ndindex(count, count):
        halves = head_and_tail((place - step) % count, count)
        steps[place, step] = sum(
            blocks_of(part, Keys(8, half * 8))
            for part in halves_of(place, count)
            for half in halves
        )
    assert (steps == steps[0]).all()
    blocks = 4 * count
    assert steps.sum() == blocks * (blocks + 1) // 2


@pytest.mark.slow
@pytest.mark.parametrize(("count", "length"), [(2, 16), (2, 24), (3, 24), (4, 40)])
def test_halves_attend_to_what_they_would_on_one_device(count, length):
    """With everything that depends on positions; those of 8 are whole blocks, and others not."""
    options = OPTIONS["causal_segments_bias"]
    inputs = make_inputs(length=length, **options)
    ours = make_ours("blockwise", **options)
    values = with_gradients(ours, inputs, f"seq:{count}", "length:seq")
    assert_close(values, in_float64(make_composed(**options), inputs), 3e-6)
