"""Attention in blocks of a sequence or an image, as a layer: whole, begun and step by step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.layers.block_attention import BlockAttention
from t2tp.layers.heads import Heads
from t2tp.layers.passes import DecodeStep, FullForward, Prefill, SequenceInfo
from tests.layers.running import run

BATCH, HEADS, D_KV, D_MODEL = 2, 4, 4, 8
SIZES = {"length": 16}, {"height": 4, "width": 8}
BLOCKS = [4], [2, 4]
CASES = [
    (0, 0, "", ""),
    (0, 0, "a:4", "length:a"),
    (0, 0, "a:2;b:2", "batch:a;heads:b"),
    (0, 1, "a:2;b:2", "length:a;heads:b"),
    (0, 2, "a:2;b:2", "length:a;heads:b;kv_heads:b"),
    (1, 0, "", ""),
    (1, 0, "a:2;b:2", "height:a;width:b"),
    (1, 0, "a:2;b:2;c:2", "batch:a;heads:b;width:c"),
    (1, 2, "a:2;b:2", "batch:a;kv_heads:b"),
]


def visible(kind: int) -> np.ndarray:
    """[place, place], from the description: a block, and those before it that touch it."""
    sizes, block = list(SIZES[kind].values()), BLOCKS[kind]
    places = np.indices([1, *sizes][-2:]).reshape(2, -1)
    rows, columns = (x // size for x, size in zip(places, [1, *block][-2:], strict=True))
    up, left = (x[:, None] - x[None] for x in (rows, columns))
    near = (up == 0) & (left >= 0) & (left <= 1)
    if kind:
        near |= (up == 1) & (abs(left) <= 1)
    numbers = np.arange(places.shape[1])
    return near & (numbers[None] <= numbers[:, None])


@pytest.mark.parametrize(("kind", "kv_heads", "mesh_shape", "layout"), CASES)
def test_it_is_its_formula_and_steps_go_on_from_any_place(kind, kv_heads, mesh_shape, layout):
    sizes = SIZES[kind]
    length = int(np.prod(list(sizes.values())))
    space = [mtf.Dimension(name, size) for name, size in sizes.items()]
    x = np.random.default_rng(0).normal(size=[BATCH, *sizes.values(), D_MODEL])
    here = np.array([length // 2 + 1, length - 1])
    named = ";".join(f"{name}:{size}" for name, size in sizes.items())
    given = {
        "x": (f"batch:{BATCH};{named};d_model:{D_MODEL}", x),
        "at": (f"batch:{BATCH};d_model:{D_MODEL}", x.reshape(BATCH, length, -1)[[0, 1], here]),
        "here": (f"batch:{BATCH}", here),
    }

    def build(x, at, here):
        attention = BlockAttention(Heads(HEADS, D_KV, num_kv_heads=kv_heads), space, BLOCKS[kind])
        positions = mtf.zeros(x.mesh, mtf.Shape(x.shape.dims[:1] + space), tf.int32)
        sequence, state = SequenceInfo(positions), {}
        prefill = Prefill(sequence, mtf.Dimension("length", length), state)
        return {
            "begun": attention(x, prefill, "self"),
            "whole": attention(x, FullForward(sequence, training=True), "self"),
            "step": attention(at, DecodeStep(here, state), "self"),
        }

    ran = run(build, given, mesh_shape, layout)
    flat = x.reshape(BATCH, length, D_MODEL)
    q, k, v = (np.einsum("btd,dhk->bhtk", flat, ran.variables[name]) for name in "qkv")
    k, v = (np.repeat(x, HEADS // x.shape[1], axis=1) for x in (k, v))
    weights = np.exp(np.einsum("bhtk,bhmk->bhtm", q, k) / D_KV**0.5) * visible(kind)
    weights /= weights.sum(-1, keepdims=True)
    attended = np.einsum("bhtm,bhmk->bhtk", weights, v)
    wanted = np.einsum("bhtk,hkd->btd", attended, ran.variables["output"])
    for name in ("whole", "begun"):
        np.testing.assert_allclose(ran[name].reshape(wanted.shape), wanted, atol=2e-5)
    np.testing.assert_allclose(ran["step"], wanted[[0, 1], here], atol=2e-5)
