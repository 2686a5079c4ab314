"""XLA's long sums are as accurate as TensorFlow's, and 16-bit numbers are summed in float32."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.lowering import staged_sums
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.group_norm import group_norm
from tests.lowering import oracle

# A shape, and the summed axes; the sum is staged over all, some or none of them.
SUMMED = [
    ([8, 32, 32, 16], [0, 1, 2, 3]),
    ([8, 32, 32, 16], [0, 1, 2]),
    ([8, 32, 32, 16], [1, 2]),
    ([4096, 3], [0]),
    ([3, 4096], [1]),
    ([2, 1031], [1]),
    ([3, 2062, 2], [1]),
    ([64, 5, 64], [0, 2]),
    ([6, 4], [-1]),
    ([6, 4], []),
]


@pytest.mark.parametrize(("shape", "axes"), SUMMED)
def test_sums_in_stages_are_sums(shape, axes):
    x = np.random.default_rng(0).uniform(size=shape).astype(np.float32)

    @tf.function(jit_compile=True, autograph=False)
    def reduced(x):
        staged_sums.sum_in_stages()
        return [
            reduce(x, axes, keepdims)
            for reduce in (staged_sums.reduce_sum, staged_sums.reduce_mean)
            for keepdims in (False, True)
        ]

    wide, axes = x.astype(np.float64), tuple(axes)
    wanted = [f(wide, axis=axes, keepdims=k) for f in (np.sum, np.mean) for k in (False, True)]
    for ours, value in zip(reduced(x), wanted, strict=True):
        assert ours.shape == value.shape
        np.testing.assert_allclose(ours, value, rtol=2e-6)


def test_in_loops_too_and_not_elsewhere():
    x = tf.random.stateless_uniform([1 << 13], [1, 2])

    def operations(in_stages):
        @tf.function(autograph=False)
        def looped(x):
            if in_stages:
                staged_sums.sum_in_stages()
            add = lambda i, y: (i + 1, y + staged_sums.reduce_sum(x * y))  # noqa: E731
            return tf.while_loop(lambda i, y: i < 3, add, (0, 1.0))

        definition = looped.get_concrete_function(x).graph.as_graph_def()
        return {node.op for function in definition.library.function for node in function.node_def}

    assert "XlaOptimizationBarrier" in operations(True)
    assert "XlaOptimizationBarrier" not in operations(False)


IMAGES = "batch:16;height:32;width:32;channels:32"


def long_sums(mesh, given):
    """Returns sums of half a million elements, of all kinds, and gradients."""
    x, y = given["x"], given["y"]
    channels = x.shape.dims[-1]
    scale, offset = given["scale"], given["offset"]
    normed, mean, variance = batch_norm(x, scale, offset, 1e-3)
    grouped = group_norm(x, scale, offset, 1, 1e-3)
    loss = mtf.reduce_mean(mtf.square(normed - y)) + mtf.reduce_mean(mtf.square(grouped - y))
    d_scale, d_offset = mtf.gradients([loss], [scale, offset])
    flat = mtf.reshape(x, mtf.Shape([mtf.Dimension("rows", 2), mtf.Dimension("classes", 1 << 18)]))
    target = mtf.zeros(x.mesh, mtf.Shape(flat.shape.dims[:1]), tf.int32)
    return {
        "difference": mtf.reduce_mean(mtf.square(x - y)),
        "by_channel": mtf.reduce_sum(mtf.square(x), output_shape=mtf.Shape([channels])),
        "mean": mean,
        "variance": variance,
        "d_scale": d_scale,
        "d_offset": d_offset,
        "logsumexp": mtf.reduce_logsumexp(flat, flat.shape.dims[-1]),
        "cross_entropy": softmax_cross_entropy(flat, target, flat.shape.dims[-1]),
        "softmax": mtf.reduce_max(mtf.softmax(flat, flat.shape.dims[-1])),
    }


@functools.cache
def run_long_sums(dtype, **options):
    random = np.random.default_rng(0)
    shapes = {"x": IMAGES, "y": IMAGES, "scale": "channels:32", "offset": "channels:32"}
    features = {name: t2tp.Feature(shape, dtype) for name, shape in shapes.items()}
    given = {name: random.normal(size=[16, 32, 32, 32]) for name in ("x", "y")}
    given |= {name: random.uniform(0.5, 1.5, size=32) for name in ("scale", "offset")}
    given = {name: x.astype(np.float32) for name, x in given.items()}
    outputs = t2tp.Program(long_sums, features, **options)(given)
    return {name: np.asarray(outputs[name], np.float64) for name in outputs}


# TensorFlow's kernels may add the 16,384 numbers of a channel in sequence. The error's standard
# deviation is about 16,384**0.5 * 2**-24 = 8e-6; the tolerance is four times as large. XLA's sums
# are staged, with fewer roundings.
@pytest.mark.parametrize(("xla", "tolerance"), [(True, 4e-6), (None, 3e-5)])
def test_compiled_or_not_the_same_numbers(xla, tolerance):
    ours = run_long_sums(tf.float32, xla=xla)
    for name, value in run_long_sums(tf.float64).items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("data:2", "batch:data")])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_sums_of_16_bits_over_tokens_are_float32s(mesh_shape, layout, dtype):
    """In 16 bits, a sum of 8,192 ones would stop at 2,048 (float16) or 256 (bfloat16)."""
    shape_of = mtf.convert_to_shape

    def step(mesh, given):
        x = given["x"]
        bias = mtf.zeros(mesh, shape_of("d_in:2"), dtype)
        (d_bias,) = mtf.gradients([x + bias], [bias], [x])
        filters = mtf.zeros(mesh, shape_of("h:1;w:1;d_in:2;d_out:3"), dtype)
        image = mtf.reshape(x, shape_of("batch:64;rows:8;columns:16;d_in:2"))
        (d_filters,) = mtf.gradients([convolution(image, filters, 1)], [filters])
        per_expert = mtf.broadcast(x, shape_of("batch:64;length:128;experts:2;d_in:2"))
        ones = mtf.ones(mesh, shape_of("batch:64;length:128;experts:2;d_out:3"), dtype)
        return {
            "sum": mtf.reduce_sum(x, output_shape=shape_of("d_in:2")),
            "bias": d_bias,
            "matrix": mtf.einsum([per_expert, ones], shape_of("experts:2;d_in:2;d_out:3")),
            "filters": d_filters,
        }

    x = np.full([64, 128, 2], 1.001, dtype.as_numpy_dtype)
    features = {"x": (shape_of("batch:64;length:128;d_in:2"), x)}
    outputs = oracle.run_ours(step, features, mesh_shape, layout)
    rounded = float(x[0, 0, 0])
    for name in outputs:
        np.testing.assert_allclose(np.asarray(outputs[name], np.float32), 8192 * rounded, rtol=1e-2)
