"""Cases of attention: options, inputs, our operation and the composed reference."""

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.attention.api import RelativeBias, attention
from tests.ops.attention.composed_attention import composed_attention

# Each kind of mask, alone and with options that change the values.
OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "window_behind": {"causal": True, "window": 3},
    "window_both_ways": {"window": 3},
    "segments": {"segments": True},
    "causal_segments_bias": {"causal": True, "segments": True, "bias": True},
    "window_segments_bias": {"window": 4, "segments": True, "bias": True},
    "causal_cap": {"causal": True, "soft_cap": 1.5},
    "all_with_cap_sinks_and_wide_values": {
        **{"causal": True, "window": 4, "segments": True, "bias": True},
        **{"soft_cap": 2.0, "sinks": True, "d_v": 12},
    },
}


METHODS = ["dense", "blockwise"]


# Rows of one segment; of several and padding; of one segment per token; of padding only.
SEGMENTS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 0], [1, 2, 3, 4, 5, 6], [0] * 6])


MAX_DISTANCE = 6


def make_inputs(
    batch=4, heads=4, length=10, d_kv=8, kv_heads=None, memory=None, scale=1.5, **options
):
    random = np.random.default_rng(0)
    q_shape = f"batch:{batch};heads:{heads};length:{length};d_kv:{d_kv}"
    k_heads = f"heads:{heads}" if kv_heads is None else f"kv_heads:{kv_heads}"
    k_length = f"length:{length}" if memory is None else f"memory:{memory}"
    memory_length, groups = memory or length, kv_heads or heads
    k_shape = f"batch:{batch};{k_heads};{k_length};d_kv:{d_kv}"
    inputs = {"q": (q_shape, scale * random.normal(size=(batch, heads, length, d_kv)))}
    for name, size in {"k": d_kv, "v": options.get("d_v", d_kv)}.items():
        shape = k_shape.replace(f"d_kv:{d_kv}", f"d_v:{size}") if size != d_kv else k_shape
        inputs[name] = (shape, random.normal(size=(batch, groups, memory_length, size)))
    if options.get("segments"):
        rows = SEGMENTS[np.arange(batch) % 4]
        inputs["segments"] = (f"batch:{batch};length:{length}", spread(rows, length))
        if memory is not None and options.get("own_segments", True):
            theirs = np.minimum(spread(rows, memory), 2)
            inputs["memory_segments"] = (f"batch:{batch};memory:{memory}", theirs)
    if options.get("bias"):
        inputs["table"] = (f"heads:{heads};buckets:8", random.normal(size=(heads, 8)))
    if options.get("sinks"):
        inputs["sinks"] = (f"heads:{heads}", random.normal(size=heads))
    return inputs


def spread(rows, length):
    """Stretches rows of 6 positions to `length`."""
    return rows[:, np.arange(length) * 6 // length]


def make_ours(method=None, block_size=4, **options):
    """Returns our attention, with blocks so small that most short lengths have a partial block."""
    names = {"causal", "window", "soft_cap", "dropout_rate"} & set(options)
    options = {name: options[name] for name in names}

    def ours(q, k, v, segments=None, table=None, **tensors):
        bias = None if table is None else RelativeBias(table, MAX_DISTANCE)
        fixed = {"relative_bias": bias, "method": method, "block_size": block_size}
        return attention(q, k, v, segments=segments, **tensors, **fixed, **options)

    return ours


def make_composed(causal=False, window=None, kept=None, soft_cap=0.0, **_):
    return composed_attention(
        causal=causal, window=window, max_distance=MAX_DISTANCE, soft_cap=soft_cap, kept=kept
    )


def program_of(
    length, memory, mesh_shape, layout, segments=False, layers=1, with_gradients=True, **options
):
    """Returns a program of attention on [2, 4, length, 4], with gradients w.r.t. q, k and v."""
    features = {"q": t2tp.Feature(f"batch:2;heads:4;{length};d_kv:4")}
    features |= dict.fromkeys("kv", t2tp.Feature(f"batch:2;heads:4;{memory};d_kv:4"))
    if segments:
        features["segments"] = t2tp.Feature(f"batch:2;{length}", tf.int32)

    def step(mesh, given):
        y, fixed = given["q"], {"segments": given.get("segments"), "block_size": 4, **options}
        for _ in range(layers):
            y = attention(y, given["k"], given["v"], **fixed)
        outputs = {"y": y}
        if with_gradients:
            learned = [given[name] for name in "qkv"]
            outputs |= zip("qkv", mtf.gradients([y], learned), strict=True)
        return outputs

    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)
