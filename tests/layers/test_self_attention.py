"""The attention layers: what their formulas say, with every option."""

import functools

import numpy as np
import pytest

from t2tp import mtf
from t2tp.layers.attention import CrossAttention, SelfAttention
from t2tp.layers.heads import Heads
from t2tp.layers.passes import FullForward, Memory, Prefill, SequenceInfo
from t2tp.layers.positions import RelativePositions
from tests.layers.running import run
from tests.ops.attention.composed_attention import composed_attention

BATCH, LENGTH, D_MODEL, HEADS, D_KV = 4, 8, 16, 4, 8
LAYOUTS = [
    ("", ""),
    ("data:4", "batch:data"),
    ("model:2", "heads:model;kv_heads:model"),
    ("data:2;model:4", "batch:data;heads:model"),
    ("data:2;model:2", "batch:data;d_model:model"),
    ("a:2;b:2;c:2", "batch:a;heads:b;d_model:c"),
]
SEGMENTS = np.array(
    [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0], [1] * 5 + [0] * 3, [1, 1, 2, 2, 3, 3, 3, 3]]
)
OPTIONS = {
    "causal": {"causal": True},
    "both_ways": {"causal": False},
    "window": {"causal": True, "window": 3},
    "rotary": {"causal": True, "rotary_base": 100.0},
}


def inputs():
    generator = np.random.default_rng(0)
    shape = f"batch:{BATCH};length:{LENGTH}"
    return {
        "x": (f"{shape};d_model:{D_MODEL}", generator.normal(size=[BATCH, LENGTH, D_MODEL])),
        "segments": (shape, SEGMENTS),
        "positions": (shape, np.tile(np.arange(LENGTH), (BATCH, 1))),
    }


def projected(x, variables, name):
    return np.einsum("btd,dhk->bhtk", x, variables[name]) + variables.get(
        f"{name}_bias", np.zeros([1, 1])
    ).reshape(1, -1, 1, variables[name].shape[-1] if f"{name}_bias" in variables else 1)


def put_together(y, variables):
    return np.einsum("bhtk,hkd->btd", y, variables["output"]) + variables.get("output_bias", 0)


def turned(x, base):
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[2])[:, None] * base ** (-np.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], -1)


def formula(variables, causal, window=None, rotary_base=None, max_distance=0):
    given = {name: array for name, (_, array) in inputs().items()}
    q, k, v = (projected(given["x"], variables, name) for name in "qkv")
    if rotary_base:
        q, k = turned(q, rotary_base), turned(k, rotary_base)
    table = {"table": variables["relative_bias"]} if max_distance else {}
    attend = composed_attention(causal=causal, window=window, max_distance=max_distance)
    y = attend(q, k, v, segments=given["segments"], **table)
    return put_together(np.array(y), variables)


def layer(kv_heads=0, use_bias=False, buckets=0, **options):
    def build(x, segments, positions):
        heads = Heads(HEADS, D_KV, num_kv_heads=kv_heads, use_bias=use_bias)
        bias = RelativePositions(buckets, 8)(x.mesh, heads.heads) if buckets else None
        forward = FullForward(SequenceInfo(positions, segments), False, relative_bias=bias)
        return {"y": SelfAttention(heads, **options)(x, forward, "self")}

    return build


@pytest.mark.parametrize("kv_heads", [0, 2, 1])
@pytest.mark.parametrize("name", OPTIONS)
def test_self_attention_is_its_formula(name, kv_heads):
    ran = run(layer(kv_heads, **OPTIONS[name]), inputs())
    np.testing.assert_allclose(ran["y"], formula(ran.variables, **OPTIONS[name]), atol=2e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_a_relative_bias_is_added_by_the_distance(causal):
    ran = run(layer(causal=causal, buckets=8), inputs(), "model:2", "heads:model")
    wanted = formula(ran.variables, causal=causal, max_distance=8)
    np.testing.assert_allclose(ran["y"], wanted, atol=2e-5)


def test_dropout_changes_what_is_trained_with_only():
    def build(x, segments, positions, training):
        attention = SelfAttention(Heads(HEADS, D_KV), causal=True, dropout=0.5)
        forward = FullForward(SequenceInfo(positions, segments), training)
        return {"y": attention(x, forward, "self")}

    dropped, whole = (
        run(functools.partial(build, training=training), inputs())["y"]
        for training in (True, False)
    )
    wanted = run(layer(causal=True), inputs())["y"]
    np.testing.assert_array_equal(whole, wanted)
    assert np.abs(dropped - wanted).max() > 0.1


@pytest.mark.parametrize("kv_heads", [0, 2])
def test_cross_attention_sees_the_segment_of_its_number(kv_heads):
    generator = np.random.default_rng(1)
    memory = generator.normal(size=[BATCH, 6, D_MODEL])
    memory_segments = np.array([[1] * 6, [1, 2, 2, 2, 0, 0], [1] * 3 + [0] * 3, [3, 3, 2, 2, 1, 1]])
    given = {
        **inputs(),
        "memory": (f"batch:{BATCH};memory_length:6;d_model:{D_MODEL}", memory),
        "memory_segments": (f"batch:{BATCH};memory_length:6", memory_segments),
    }

    def build(x, segments, positions, memory, memory_segments):
        cross = CrossAttention(Heads(HEADS, D_KV, num_kv_heads=kv_heads))
        sequence = SequenceInfo(positions, segments)
        forward = FullForward(sequence, False, Memory(memory, memory_segments))
        return {"y": cross(x, forward, "cross")}

    for mesh_shape, layout in LAYOUTS:
        ran = run(build, given, mesh_shape, layout)
        q = projected(given["x"][1], ran.variables, "q")
        k, v = (projected(memory, ran.variables, name) for name in "kv")
        y = composed_attention()(q, k, v, segments=SEGMENTS, memory_segments=memory_segments)
        np.testing.assert_allclose(ran["y"], put_together(np.array(y), ran.variables), atol=2e-5)


def test_parameters_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="num_kv_heads 3 must divide num_heads 4"):
        Heads(4, 8, num_kv_heads=3)


def test_a_state_too_short_for_what_is_given_is_refused():
    def build(x, segments, positions):
        attention = SelfAttention(Heads(HEADS, D_KV), causal=True)
        forward = Prefill(SequenceInfo(positions), mtf.Dimension("length", 4), {})
        attention(x, forward, "self")
        return {}

    with pytest.raises(ValueError, match="8 tokens do not fit into the 4"):
        run(build, inputs())
