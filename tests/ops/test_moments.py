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


def vector(x, value):
    return mtf.constant(x.mesh, value, mtf.Shape(x.shape.dims[-1:]), x.dtype)


def last(x):
    return x.shape.dims[-1]


def one_and_zero(x):
    return vector(x, 1.0), vector(x, 0.0)


def on_batch_norm(output):
    return lambda x: batch_norm(x, *one_and_zero(x), EPSILON)[output]


STATISTICS = {
    "batch_norm": on_batch_norm(0),
    "batch_mean": on_batch_norm(1),
    "batch_variance": on_batch_norm(2),
    "group_norm": lambda x: group_norm(x, *one_and_zero(x), 4, EPSILON),
    "layer_norm": lambda x: layer_norm(x, *one_and_zero(x), last(x), EPSILON),
    "rms_norm": lambda x: rms_norm(x, vector(x, 1.0), last(x), EPSILON),
    "mean": mtf.reduce_mean,
    "mean_of_images": lambda x: mtf.reduce_mean(x, output_shape=mtf.Shape(x.shape.dims[-1:])),
    "softmax": lambda x: mtf.softmax(x, last(x)),
    "logsumexp": lambda x: mtf.reduce_logsumexp(x, last(x)),
}


@functools.cache
def values(dtype, inputs_dtype, mesh_shape="", layout=""):
    """Returns (name, (mean, standard deviation)) -> the statistic of rounded inputs."""

    def step(mesh, given):
        return {
            f"{name}/{i}": compute(given[f"x{i}"])
            for name, compute in STATISTICS.items()
            for i in range(len(PLACES))
        }

    normal = np.random.default_rng(0).normal(size=[8, 4, 8, 16])
    given = {f"x{i}": (m + std * normal).astype(inputs_dtype) for i, (m, std) in enumerate(PLACES)}
    features = dict.fromkeys(given, t2tp.Feature(SHAPE, tf.as_dtype(dtype)))
    outputs = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)(given)
    return {
        (name, place): outputs[f"{name}/{i}"]
        for name in STATISTICS
        for i, place in enumerate(PLACES)
    }


def errors(dtype, mesh_shape="", layout=""):
    """Returns the largest errors, compared with float64 on one device."""
    exact = values("float64", dtype)
    found = values(dtype, dtype, mesh_shape, layout)
    return {key: float(np.abs(value - exact[key]).max()) for key, value in found.items()}


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
