"""Attention to keys that each stand for several positions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.ops.attention.api import RelativeBias, attention
from tests.cases import in_turn
from tests.ops.attention.attention_cases import set_block_sizes
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

STRIDE, LENGTH = 3, 14  # Four whole keys, and two positions that make none.
LAYOUTS = [
    ("", ""),
    ("a:2;b:2", "batch:a;heads:b;kv_heads:b"),
    ("a:2", "heads:a"),
    ("a:2", "length:a"),
    ("a:2;b:2", "length:a;compressed_length:b"),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    set_block_sizes(monkeypatch, queries=4, keys=2)


def inputs(with_segments):
    generator = np.random.default_rng(0)
    memory = LENGTH // STRIDE
    sizes = {"q": [4, 4, LENGTH, 8], "k": [4, 2, memory, 8], "v": [4, 2, memory, 8]}
    given = {
        name: (f"batch:4;{heads};{d}:{shape[2]};d_kv:8", generator.normal(size=shape))
        for (name, shape), heads, d in zip(
            sizes.items(),
            ("heads:4", "kv_heads:2", "kv_heads:2"),
            ("length", "compressed_length", "compressed_length"),
            strict=True,
        )
    }
    if with_segments:
        given["segments"] = (f"batch:4;length:{LENGTH}", generator.integers(1, 3, [4, LENGTH]))
        given["memory_segments"] = (
            f"batch:4;compressed_length:{memory}",
            generator.integers(-1, 3, [4, memory]),
        )
    return given


def composed(q, k, v, segments=None, memory_segments=None):
    k, v = (tf.repeat(x, 2, axis=1) for x in (k, v))
    scores = tf.einsum("bhtd,bhmd->bhtm", q, k) / 8**0.5
    last = np.arange(k.shape[2]) * STRIDE + STRIDE - 1
    is_seen = np.broadcast_to(last[None] <= np.arange(LENGTH)[:, None], scores.shape)
    if segments is not None:
        same = segments.numpy()[:, :, None] == memory_segments.numpy()[:, None, :]
        is_seen = is_seen & same[:, None]
    weights = tf.nn.softmax(tf.where(is_seen, scores, -1e300)) * is_seen.astype(float)
    return tf.einsum("bhtm,bhmd->bhtd", weights, v)


@pytest.mark.parametrize(
    ("mesh_shape", "layout", "with_segments", "method"),
    in_turn(
        LAYOUTS,
        [(False, "dense"), (True, "blockwise"), (True, "dense"), (False, "blockwise")],
        times=2,
    ),
)
def test_a_key_is_seen_once_all_its_positions_are(mesh_shape, layout, with_segments, method):
    given = inputs(with_segments)

    def ours(**tensors):
        return attention(**tensors, causal=True, memory_stride=STRIDE, method=method)

    got = with_gradients(ours, given, mesh_shape, layout)
    assert_close(got, in_float64(composed, given), 3e-6)


def build(memory="memory_length:3", **options):
    features = {
        "q": t2tp.Feature("batch:2;heads:2;length:11;d_kv:4"),
        "k": t2tp.Feature(f"batch:2;heads:2;{memory};d_kv:4"),
        "table": t2tp.Feature("heads:2;buckets:4"),
    }

    def step(mesh, given):
        bias = RelativeBias(given["table"], 8) if options.pop("with_bias", False) else None
        y = attention(given["q"], given["k"], given["k"], relative_bias=bias, **options)
        return {"y": y}

    return t2tp.Program(step, features)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_stride": 0}, "at least 1"),
        ({"memory_stride": 3, "window": 2}, "no window"),
        ({"memory_stride": 2}, "make 5 keys, and k has 3"),
        ({"memory_stride": 3, "with_bias": True}, "needs a memory_stride of 1"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
