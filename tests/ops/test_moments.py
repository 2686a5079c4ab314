"""Means, variances and logsumexp over split dimensions are as accurate as over whole ones.

They are tested with means far from 0 and with small variances.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.group_norm import group_norm
from t2tp.ops.norms.layer_norm import layer_norm, rms_norm

SHAPE = "batch:8;height:4;width:8;channels:16"
LAYOUTS = [
    ("data:2", "batch:data"),
    ("model:4", "channels:model"),
    ("data:2;model:2", "batch:data;channels:model"),
    ("rows:2;columns:2", "height:rows;width:columns"),
]
# Mean and standard deviation; the last pair is like a nearly constant channel.
PLACES = [(0.0, 1.0), (100.0, 1.0), (1000.0, 1.0), (3000.0, 1.0), (1e4, 1.0), (1.0, 1e-4)]
EPSILON = 1e-9
DTYPES = {"float32": tf.float32, "float64": tf.float64}

image_axes = (0, 1, 2)


def arrays(dtype):
    random = np.random.default_rng(0)
    normal = random.normal(size=[8, 4, 8, 16])
    given = {f"x{i}": mean + std * normal for i, (mean, std) in enumerate(PLACES)}
    # The program also rounds its inputs to `dtype`.
    return {name: x.astype(dtype) for name, x in given.items()}


def normed(x, mean, square):
    return (x - mean) / np.sqrt(square + EPSILON)


def plain_norm(x, axes):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return normed(x, mean, variance)


def plain_logsumexp(x):
    highest = x.max(-1, keepdims=True)
    return np.log(np.exp(x - highest).sum(-1)) + highest[..., 0]


def plain_softmax(x):
    return np.exp(x - plain_logsumexp(x)[..., None])


def plain_groups(x):
    return plain_norm(x.reshape(8, 4 * 8, 4, 4), (1, 3)).reshape(x.shape)


def vector(x, value):
    return mtf.constant(x.mesh, value, mtf.Shape(x.shape.dims[-1:]), x.dtype)


def last(x):
    return x.shape.dims[-1]


def one_and_zero(x):
    return vector(x, 1.0), vector(x, 0.0)


def on_batch_norm(output):
    return lambda x: batch_norm(x, *one_and_zero(x), EPSILON)[output]


# Name -> the statistic on a mesh, and in NumPy's float64.
STATISTICS = {
    "batch_norm": (on_batch_norm(0), lambda x: plain_norm(x, image_axes)),
    "batch_mean": (on_batch_norm(1), lambda x: x.mean(image_axes)),
    "batch_variance": (on_batch_norm(2), lambda x: x.var(image_axes)),
    "group_norm": (lambda x: group_norm(x, *one_and_zero(x), 4, EPSILON), plain_groups),
    "layer_norm": (
        lambda x: layer_norm(x, *one_and_zero(x), last(x), EPSILON),
        lambda x: plain_norm(x, -1),
    ),
    "rms_norm": (
        lambda x: rms_norm(x, vector(x, 1.0), last(x), EPSILON),
        lambda x: normed(x, 0.0, (x**2).mean(-1, keepdims=True)),
    ),
    "mean": (mtf.reduce_mean, lambda x: x.mean()),
    "mean_of_images": (
        lambda x: mtf.reduce_mean(x, output_shape=mtf.Shape(x.shape.dims[-1:])),
        lambda x: x.mean(image_axes),
    ),
    "softmax": (lambda x: mtf.softmax(x, last(x)), plain_softmax),
    "logsumexp": (lambda x: mtf.reduce_logsumexp(x, last(x)), plain_logsumexp),
}


@functools.cache
def errors(dtype, mesh_shape="", layout=""):
    """Returns (name, (mean, standard deviation)) -> largest error of the statistic."""

    def step(mesh, given):
        return {
            f"{name}/{i}": compute(given[f"x{i}"])
            for name, (compute, _) in STATISTICS.items()
            for i in range(len(PLACES))
        }

    given = arrays(dtype)
    feature = t2tp.Feature(SHAPE, DTYPES[dtype])
    features = dict.fromkeys(given, feature)
    outputs = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)(given)
    found = {}
    for name, (_, plain) in STATISTICS.items():
        for i, place in enumerate(PLACES):
            wanted = plain(given[f"x{i}"].astype(np.float64))
            found[name, place] = float(np.abs(outputs[f"{name}/{i}"] - wanted).max())
    return found


SPLIT = [*((*each, "float32") for each in LAYOUTS), (*LAYOUTS[2], "float64")]


@pytest.mark.parametrize(("mesh_shape", "layout", "dtype"), SPLIT)
def test_split_dimensions_are_as_exact_as_whole_ones(mesh_shape, layout, dtype):
    whole, split = errors(dtype), errors(dtype, mesh_shape, layout)
    for (name, place), error in split.items():
        mean, std = place
        # The error of one number from rounding the mean, in the unit of the result.
        rounding = np.finfo(dtype).eps * max(mean, std)
        if name.endswith("norm") and name != "rms_norm":
            rounding /= std
        assert error <= 2 * whole[name, place] + 8 * rounding, (name, place, whole[name, place])
