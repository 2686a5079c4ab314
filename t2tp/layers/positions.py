"""Position encodings other than rotary ones (`t2tp.ops.rotary`)."""

import math

import tensorflow as tf

from t2tp import mtf
from t2tp.layers import variables
from t2tp.ops.attention.api import RelativeBias
from t2tp.ops.gather import checked_gather


def sinusoidal(positions: mtf.Tensor, d_model: mtf.Dimension, dtype: tf.DType) -> mtf.Tensor:
    """Returns sinusoidal encodings, sines in the first half of the features, as in tensor2tensor.

    A. Vaswani et al. (arXiv:1706.03762), section 3.5. Feature i of d_model / 2 has the wavelength
    `2 pi * 10000 ** (i / (d_model / 2 - 1))`.

    Args:
      positions: integers [...].
      d_model: an even dimension; it may be split.
      dtype: dtype of the result.

    Returns:
      [..., d_model].

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


class LearnedPositions:
    """Learned position embeddings, the variable `positions` of the current scope."""

    def __init__(self, max_length: int, stddev: float) -> None:
        """Sets size and initial values.

        Args:
          max_length: one more than the largest position.
          stddev: standard deviation of the initial values.
        """
        self._dim = mtf.Dimension("max_length", max_length)
        self._stddev = stddev

    def __call__(
        self, positions: mtf.Tensor, d_model: mtf.Dimension, dtype: tf.DType
    ) -> mtf.Tensor:
        """Looks up integers [...] in [0, max_length) -> [..., d_model]."""
        table = variables.embedding(
            positions.mesh, "positions", [self._dim], d_model, self._stddev, dtype
        )
        return checked_gather(table, positions, self._dim)


class RelativePositions:
    """Learned relative position bias per head and distance bucket.

    It is the variable `relative_bias` of the current scope, shared by all layers of a stack (C.
    Raffel et al., arXiv:1910.10683, section 2.1).
    """

    def __init__(self, buckets: int = 32, max_distance: int = 128) -> None:
        """Sets the buckets; see `t2tp.ops.attention.api.RelativeBias`."""
        self._buckets = mtf.Dimension("relative_buckets", buckets)
        self._max_distance = max_distance

    def __call__(self, mesh: mtf.Mesh, heads: mtf.Dimension) -> RelativeBias:
        """Returns the bias of the heads."""
        dims = [heads, self._buckets]
        stddev = heads.size**-0.5
        table = variables.bias(mesh, "relative_bias", dims, tf.float32, stddev=stddev)
        return RelativeBias(table, self._max_distance)
