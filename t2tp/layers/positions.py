"""Position encodings other than rotary ones (`t2tp.ops.rotary`)."""

import math

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers import variables
from t2tp.ops.attention.api import RelativeBias


def context_length(hparams: HParams) -> int:
    """Returns a model's max number of positions: at least the length of its training rows."""
    own = hparams.context_length if "context_length" in hparams else 0
    return max(hparams.max_length, own)


def sinusoidal(positions: mtf.Tensor, d_model: mtf.Dimension, dtype: tf.DType) -> mtf.Tensor:
    """Returns sinusoidal encodings (A. Vaswani et al., arXiv:1706.03762, section 3.5).

    As in tensor2tensor, the first half of the features are sines, the second half cosines. Feature
    i of either half has the wavelength `2 pi * 10000 ** (i / (d_model / 2 - 1))`.

    The positions are integers [...]. The dimension d_model must be even, and may be split.

    Raises:
      ValueError: d_model is odd.
    """
    if d_model.size % 2:
        raise ValueError(f"sines and cosines come in pairs: the size of {d_model} must be even.")
    half = d_model.size // 2
    feature = mtf.range(positions.mesh, d_model, tf.int32)
    is_cosine = mtf.cast(mtf.greater_equal(feature, half), tf.float32)
    number = mtf.cast(feature, tf.float32) - half * is_cosine
    turns = mtf.exp(number * (-math.log(10000.0) / max(half - 1, 1)))
    shape = positions.shape + d_model
    angle = mtf.einsum([mtf.cast(positions, tf.float32), turns], output_shape=shape)
    return mtf.cast(mtf.sin(mtf.add(angle, is_cosine * (math.pi / 2), output_shape=shape)), dtype)


def learned(
    positions: mtf.Tensor, max_length: int, d_model: mtf.Dimension, stddev: float, dtype: tf.DType
) -> mtf.Tensor:
    """Looks up learned encodings in the variable `positions` in the current scope.

    The positions are integers [...] in [0, max_length).
    """
    dim = mtf.Dimension("max_length", max_length)
    table = variables.embedding(positions.mesh, "positions", [dim], d_model, stddev, dtype)
    return mtf.gather(table, positions, dim, is_checked=True)


def relative(
    mesh: mtf.Mesh, heads: mtf.Dimension, relative_buckets: int, relative_max_distance: int
) -> RelativeBias:
    """Returns a learned bias per head and distance bucket, shared by all layers of a stack.

    The variable is `relative_bias` in the current scope (C. Raffel et al., arXiv:1910.10683,
    section 2.1). The distance `relative_max_distance` and all larger ones share a bucket.
    """
    dims = [heads, mtf.Dimension("relative_buckets", relative_buckets)]
    stddev = heads.size**-0.5
    table = variables.bias(mesh, "relative_bias", dims, tf.float32, stddev=stddev)
    return RelativeBias(table, relative_max_distance)
