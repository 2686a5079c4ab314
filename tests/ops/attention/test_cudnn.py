"""Attention by cuDNN: XLA's calls, and their results on a GPU (`T2TP_TEST_GPU=1`)."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from t2tp.lowering.mesh_impl import Backend
from t2tp.ops.attention import cudnn
from t2tp.ops.attention.blocks import KeyRange, Queries
from t2tp.ops.attention.mask import Mask, Packed
from t2tp.ops.attention.score_terms import ScoreTerms
from t2tp.program.segments import MOST_SEGMENTS, segments_of_rows
from tests.ops.attention import jax_calls
from tests.ops.attention.jax_calls import BATCH, D_KV, HEADS, LENGTH, MAX_SEGMENTS

GPU = Backend(on_cpu=False, compiles_regions=False, compiles_step=True)
JAX = json.loads((Path(__file__).parent / "jax_calls.json").read_text())
SEGMENTS = np.array(jax_calls.SEGMENTS, np.int32)
# Packed rows: segments of odd lengths, of one token, and padding at the end.
ROWS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    if not tf.config.list_logical_devices("GPU"):
        monkeypatch.setattr(cudnn, "compute_capability", lambda: (9, 0))


def inputs(kv_heads=HEADS):
    random = np.random.default_rng(0)
    sizes = [(BATCH, heads, LENGTH, D_KV) for heads in (HEADS, kv_heads, kv_heads, HEADS)]
    return [tf.constant(random.normal(size=size), tf.bfloat16) for size in sizes]


def mask_of(causal, window, segments, max_segments=MAX_SEGMENTS):
    segments = None if segments is None else tf.constant(segments)
    places = {"segments": segments, "memory_segments": segments, "max_segments": max_segments}
    return Mask(Queries(LENGTH), KeyRange(LENGTH), causal=causal, window=window, **places)


def attended(q, k, v, dy, mask, target=GPU):
    q, memory, terms = cudnn.guarded(q, mask), (k, v, target), [ScoreTerms(mask, None, None, 0)]
    ((y, log, _),) = cudnn.forward([q], memory, terms)
    (grads,), d_memory = cudnn.backward([(q, y, log, dy)], memory, terms)
    return y, grads.q, *d_memory


def hlo_of(causal, window, segments, max_segments=MAX_SEGMENTS, kv_heads=HEADS):
    def run(*tensors):
        return attended(*tensors, mask_of(causal, window, segments, max_segments))

    tf.random.set_seed(0)  # TensorFlow draws a number to choose the device
    compiled = tf.function(run, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*inputs(kv_heads))(stage="hlo")


def covers(expected, ours):
    """Whether our JSON has the values of JAX's, which has more keys for unused fields."""
    if isinstance(ours, dict):
        return all(covers(expected[key], value) for key, value in ours.items())
    return str(expected) == str(ours)


@pytest.mark.parametrize("case", jax_calls.CASES)
def test_calls_are_the_same_as_jaxs(case):
    causal, window, has_segments, has_bias = jax_calls.CASES[case]
    segments = SEGMENTS if has_segments or has_bias else None
    hlo = hlo_of(causal, window, segments, 0 if has_bias else MAX_SEGMENTS)
    assert "conditional" not in hlo
    for ours, theirs in zip(jax_calls.calls_of(hlo), JAX[case], strict=True):
        assert covers(theirs["config"], ours["config"])
        assert (ours["target"], ours["operands"]) == (theirs["target"], theirs["operands"])
        # JAX also computes the gradient of the bias.
        results = [x for x in theirs["results"] if not x.startswith("bf16[2,1,")]
        assert ours["results"] == results


def test_lengths_and_offsets_are_the_same_as_jaxs():
    mask, x = mask_of(True, None, SEGMENTS), tf.zeros([BATCH, HEADS, LENGTH, D_KV], tf.bfloat16)
    for ours, theirs in zip(cudnn._packed(mask, x, x), JAX["lengths_and_offsets"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    offsets = [x.numpy() for x in cudnn._packed(mask, x, x[:, :2])[2:]]
    np.testing.assert_array_equal(offsets[0], offsets[1] * 2)  # with half as many kv heads


CASES = [
    (True, None, 4, (9, 0), False),
    (True, 8, 1, (8, 0), False),
    (False, None, 2, (10, 0), False),
    (False, 8, 4, (9, 0), True),  # later keys, too
    (True, None, 4, (8, 9), True),
    (True, None, 0, (9, 0), True),
]


@pytest.mark.parametrize(("causal", "window", "max_segments", "capability", "has_bias"), CASES)
def test_a_mask_without_kernel_is_a_bias(
    causal, window, max_segments, capability, has_bias, monkeypatch
):
    monkeypatch.setattr(cudnn, "compute_capability", lambda: capability)
    hlo = hlo_of(causal, window, SEGMENTS, max_segments, kv_heads=2)
    assert ("ScaleBias" in hlo) == has_bias
    assert "conditional" not in hlo
    assert "while" not in hlo


def packed_rows(lengths_of_rows):
    """Returns rows [2, length] of segments 1, 2, ... with padding 0."""
    width = max(map(sum, lengths_of_rows))
    rows = [np.repeat(1 + np.arange(len(lengths)), lengths) for lengths in lengths_of_rows]
    return np.stack([np.pad(row, (0, width - len(row))) for row in rows]).astype(np.int32)


@given(st.tuples(ROWS, ROWS), st.booleans(), st.sampled_from([None, 1, 3]))
def test_runs_stand_for_the_mask(lengths_of_rows, causal, window):
    """A kernel's queries attend to the keys of their run, at these offsets and lengths."""
    window = window if causal else None
    segments = packed_rows(lengths_of_rows)
    rows, length = segments.shape
    count = segments_of_rows([segments])
    packed = Packed(tf.constant(segments), count)
    assert packed.fits
    attends = np.zeros([rows * length] * 2, bool)
    lengths, offsets = packed.lengths.numpy().ravel(), packed.offsets.numpy().ravel()
    assert (offsets[1 : len(lengths) + 1] - offsets[:-1][: len(lengths)] == lengths).all()
    for size, begin in zip(lengths, offsets[: len(lengths)], strict=True):
        query, key = np.ogrid[:size, :size]
        seen = (key <= query) | (not causal)
        attends[begin : begin + size, begin : begin + size] = (
            seen if window is None else seen & (key > query - window)
        )
    tensors = {"segments": tf.constant(segments), "memory_segments": tf.constant(segments)}
    mask = Mask(Queries(length), KeyRange(length), causal=causal, window=window, **tensors)
    expected = np.zeros_like(attends)
    for row, seen in enumerate(mask.block(mask.whole).numpy()[:, 0] == 0):
        part = slice(row * length, (row + 1) * length)
        expected[part, part] = seen
    np.testing.assert_array_equal(attends, expected)
    # The kernels' logs are [runs, heads, length]; our own are [batch, heads, length].
    log = tf.random.normal([rows, 3, length])
    np.testing.assert_array_equal(packed.by_token(packed.by_run(log)), log)
    by_run = packed.by_run(log).numpy()
    for run, (size, begin) in enumerate(zip(lengths, offsets[: len(lengths)], strict=True)):
        row, place = divmod(begin, length)
        if size:
            part = log.numpy()[row, :, place : place + size]
            np.testing.assert_array_equal(by_run[run, :, :size], part)


COUNTED = [
    ([[1, 1, 2, 0], [1, 1, 1, 1]], 4, True),
    ([[1, 1, 1, 1], [7, 7, 7, 7]], 1, True),
    ([[3, 3, 2, 2], [0, 0, 1, 1]], 2, True),  # not in order
    ([[1, 2, 1, 1], [1, 1, 1, 1]], 0, False),  # a part of segment 1 is elsewhere
    ([[*range(MOST_SEGMENTS + 1)]], 0, False),
]


@pytest.mark.parametrize(("rows", "count", "fits"), COUNTED)
def test_the_host_counts_segments(rows, count, fits):
    assert segments_of_rows([np.array(rows)]) == count
    assert bool(Packed(tf.constant(rows), count or MOST_SEGMENTS).fits) == fits


@pytest.mark.parametrize("max_segments", [1, 2])
def test_more_segments_than_compiled_for_are_not_silent(max_segments):
    q = inputs()[0]
    assert np.isnan(cudnn.guarded(q, mask_of(True, None, SEGMENTS, max_segments)).numpy()).all()
    assert cudnn.guarded(q, mask_of(True, None, SEGMENTS, 0)) is q
    np.testing.assert_array_equal(cudnn.guarded(q, mask_of(True, None, SEGMENTS)), q)


def composed(q, k, v, dy, mask):
    q, k, v, dy = (tf.cast(x, tf.float32) for x in (q, k, v, dy))
    with tf.GradientTape() as tape:
        tape.watch((q, k, v))
        keys, values = (tf.repeat(x, HEADS // x.shape[1], 1) for x in (k, v))
        scores = tf.matmul(q, keys, transpose_b=True)
        bias = mask.block(mask.whole)
        y = tf.matmul(tf.nn.softmax(scores if bias is None else scores + bias), values)
    return y, *tape.gradient(y, (q, k, v), dy)


SEGMENTED = [(None, 0), (SEGMENTS, 0), (SEGMENTS, 4), (SEGMENTS, 16), (np.ones_like(SEGMENTS), 1)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 8])
@pytest.mark.parametrize(("segments", "max_segments"), SEGMENTED)
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
def test_results(causal, window, segments, max_segments, kv_heads):
    if not tf.config.list_logical_devices("GPU"):
        pytest.skip("needs a GPU")
    tensors, mask = inputs(kv_heads), mask_of(causal, window, segments, max_segments)
    got = tf.function(lambda *x: attended(*x, mask), jit_compile=True, autograph=False)(*tensors)
    for ours, expected in zip(got, composed(*tensors, mask), strict=True):
        error = tf.norm(tf.cast(ours, tf.float32) - expected) / tf.norm(expected)
        assert error < 1e-2  # for sums of bfloat16 products


def test_layers_share_a_mask_where_regions_are_compiled():
    target = GPU._replace(compiles_step=False, compiles_regions=True)

    @tf.function(autograph=False)
    def layers(*tensors):
        mask = mask_of(True, None, SEGMENTS)
        return [attended(*tensors, mask, target) for _ in range(2)]

    layers.get_concrete_function(*inputs())


USES = [
    (tf.bfloat16, 256, (9, 0), GPU, True),
    (tf.bfloat16, 136, (8, 0), GPU, False),
    (tf.bfloat16, 136, (10, 0), GPU, False),
    (tf.bfloat16, 64, (7, 5), GPU, False),
    (tf.float16, 64, (8, 0), GPU._replace(compiles_step=False, compiles_regions=True), True),
    (tf.float32, 64, (9, 0), GPU, False),
    (tf.bfloat16, 12, (9, 0), GPU, False),
    (tf.bfloat16, 64, (9, 0), GPU._replace(on_cpu=True), False),
    (tf.bfloat16, 64, (9, 0), GPU._replace(compiles_step=False), False),  # --noxla
]


@pytest.mark.parametrize(("dtype", "d_kv", "capability", "target", "expected"), USES)
def test_when_it_is_used(dtype, d_kv, capability, target, expected, monkeypatch):
    monkeypatch.setattr(cudnn, "compute_capability", lambda: capability)
    assert (cudnn.usable(target, dtype, d_kv) is not None) == expected
