"""Attention by cuDNN: XLA's calls, and their results on a GPU (`T2TP_TEST_GPU=1`)."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp.lowering.mesh_impl import Target
from t2tp.ops.attention import cudnn
from t2tp.ops.attention.blocks import Keys, Queries
from t2tp.ops.attention.mask import Mask

GPU = Target(on_cpu=False, compiles_regions=False, compiles_step=True)
BATCH, HEADS, KV_HEADS, LENGTH, D_KV = 2, 4, 2, 48, 32


def inputs():
    random = np.random.default_rng(0)
    sizes = [(BATCH, heads, LENGTH, D_KV) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    segments = np.sort(random.integers(1, 4, (BATCH, LENGTH)), axis=1)
    return [tf.constant(random.normal(size=size), tf.bfloat16) for size in sizes], segments


def mask_of(causal, window, segments):
    segments = None if segments is None else tf.constant(segments, tf.int32)
    return Mask(
        *(Queries(LENGTH), Keys(LENGTH)),
        **{"causal": causal, "window": window},
        **{"segments": segments, "memory_segments": segments},
    )


def attended(q, k, v, dy, mask):
    y, log, _ = cudnn.forward(q, k, v, mask, GPU)
    gradients = cudnn.backward(q, k, v, y, log, dy, mask, GPU)
    return y, *gradients[:3]


def composed(q, k, v, dy, mask):
    q, k, v, dy = (tf.cast(x, tf.float32) for x in (q, k, v, dy))
    with tf.GradientTape() as tape:
        tape.watch((q, k, v))
        keys, values = (tf.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
        scores = tf.matmul(q, keys, transpose_b=True)
        bias = mask.block(mask.whole)
        y = tf.matmul(tf.nn.softmax(scores if bias is None else scores + bias), values)
    return y, *tape.gradient(y, (q, k, v), dy)


MASKS = [
    # causal, window, has segments; the calls of the forward pass
    (True, None, False, ["Softmax"]),
    (False, None, False, ["Softmax"]),
    (True, 8, False, ["ScaleBiasSoftmax"]),
    (True, None, True, ["ScaleBiasSoftmax", "Softmax"]),
    (False, None, True, ["ScaleBiasSoftmax", "Softmax"]),
]


@pytest.mark.parametrize(("causal", "window", "has_segments", "calls"), MASKS)
def test_a_mask_that_is_not_just_causal_is_a_bias(causal, window, has_segments, calls):
    tensors, segments = inputs()

    def run(*tensors):
        mask = mask_of(causal, window, segments if has_segments else None)
        return attended(*tensors, mask)

    tf.random.set_seed(0)  # TensorFlow draws a number to choose the device
    compiled = tf.function(run, jit_compile=True, autograph=False)
    hlo = compiled.experimental_get_compiler_ir(*tensors)(stage="hlo")
    for call in calls:
        assert f'"__cudnn$fmha{call}"' in hlo
        assert f'"__cudnn$fmha{call}Backward"' in hlo
    assert hlo.count("custom-call(") == 2 * len(calls)
    assert ("CAUSAL" in hlo) == causal


@pytest.mark.parametrize(("causal", "window", "has_segments", "calls"), MASKS)
def test_results(causal, window, has_segments, calls):
    if not tf.config.list_logical_devices("GPU"):
        pytest.skip("needs a GPU")
    tensors, segments = inputs()
    mask = mask_of(causal, window, segments if has_segments else None)
    got = tf.function(lambda *x: attended(*x, mask), jit_compile=True, autograph=False)(*tensors)
    for ours, expected in zip(got, composed(*tensors, mask), strict=True):
        error = tf.norm(tf.cast(ours, tf.float32) - expected) / tf.norm(expected)
        assert error < 1e-2  # for sums of bfloat16 products


def test_layers_share_a_mask_where_regions_are_compiled():
    tensors, segments = inputs()
    target = GPU._replace(compiles_step=False, compiles_regions=True)

    @tf.function(autograph=False)
    def layers(q, k, v):
        mask = mask_of(True, None, segments)
        for _ in range(2):
            q, *_ = cudnn.forward(q, k, v, mask, target)
        return q

    layers.get_concrete_function(*tensors[:3])


@pytest.mark.parametrize(
    ("dtype", "d_kv", "target", "expected"),
    [
        (tf.bfloat16, 128, GPU, True),
        (tf.float16, 64, GPU._replace(compiles_step=False, compiles_regions=True), True),
        (tf.float32, 64, GPU, False),
        (tf.bfloat16, 136, GPU, False),
        (tf.bfloat16, 12, GPU, False),
        (tf.bfloat16, 64, GPU._replace(on_cpu=True), False),
        (tf.bfloat16, 64, GPU._replace(compiles_step=False), False),  # --noxla
    ],
)
def test_when_it_is_used(dtype, d_kv, target, expected):
    assert (cudnn.usable(target, dtype, d_kv) is not None) == expected
