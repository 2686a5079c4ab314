"""Initial values of variables, slice by slice.

A model sets `initializer=tf.random_normal_initializer(stddev=0.02)`, as in TensorFlow. Such an
initializer is not called; its fields are read. A slice's elements come from the counter-based
generator, so no device ever holds the whole variable and every mesh starts from the same values.
Only an initializer that is a function computes the whole value, from which slices are cut.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.python.ops.init_ops import _compute_fans

from t2tp.lowering import random

# The standard deviation of a standard normal that is truncated at two. TensorFlow's VarianceScaling
# divides by it to get the requested standard deviation.
_TRUNCATED_STDDEV = 0.87962566103423978
_RANDOM = ("RandomNormal", "TruncatedNormal", "RandomUniform")


def initial_slice(
    initializer: Any,
    name: str,
    shape: Sequence[int],
    begin: Sequence[int],
    size: Sequence[int],
    dtype: tf.DType,
    seed: int,
) -> tf.Tensor:
    """Computes a slice of a variable's initial value.

    Args:
      initializer: a TensorFlow or Keras initializer (zeros, ones, constant, random normal /
        truncated normal / uniform, variance scaling and its Glorot and He forms), or None for
        Glorot uniform. Or a function `(shape, dtype) -> tensor` that always returns the same
        tensor: it computes the global value, from which the slice is cut.
      name: the variable's name. Name and seed determine the random numbers.
      shape: global shape.
      begin: where the slice begins.
      size: the slice's shape.
      dtype: the slice's dtype.
      seed: the run's seed.

    Raises:
      ValueError: the initializer is of none of these kinds.
    """
    if isinstance(initializer, type):
        initializer = initializer()
    kind = "GlorotUniform" if initializer is None else type(initializer).__name__
    if kind in ("Zeros", "Ones"):
        return tf.fill(size, tf.cast(0 if kind == "Zeros" else 1, dtype))
    if kind == "Constant" and np.ndim(initializer.value) == 0:
        return tf.fill(size, tf.cast(initializer.value, dtype))

    key = random.make_key(seed, "initial value", name)
    # By name, because `tf.keras` would import Keras: a quarter of the time to the first step.
    names = {base.__name__ for base in type(initializer).__mro__}
    random_bits = None
    if kind in _RANDOM or "VarianceScaling" in names or initializer is None:
        random_bits = random.slice_bits(key, shape, begin, size)
    if kind == "RandomNormal":
        value = initializer.mean + initializer.stddev * random.normal(random_bits)
    elif kind == "TruncatedNormal":
        value = initializer.mean + initializer.stddev * random.truncated_normal(random_bits)
    elif kind == "RandomUniform":
        low, high = initializer.minval, 1.0 if initializer.maxval is None else initializer.maxval
        value = low + (high - low) * random.uniform(random_bits)
    elif random_bits is not None:
        value = _variance_scaled(initializer, shape, random_bits)
    elif callable(initializer):
        # The call has its own graph, with a seed of its own, so that the results of TensorFlow's
        # random operations depend on nothing else.
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            graph.seed = key % 2**31
            whole = tf.convert_to_tensor(initializer(list(shape), dtype=dtype))
            value = session.run(tf.slice(whole, begin, size))
    else:
        raise ValueError(
            f"Variable {name!r}: initializer {initializer!r} is neither one of TensorFlow's nor a"
            f" function"
            " (shape, dtype) -> tensor."
        )
    return tf.cast(value, dtype)


def _variance_scaled(
    initializer: object, shape: Sequence[int], random_bits: tf.Tensor
) -> tf.Tensor:
    """Computes VarianceScaling (He et al. 2015; Glorot and Bengio 2010) with the global fans."""
    scale = getattr(initializer, "scale", 1.0)
    mode = getattr(initializer, "mode", "fan_avg")
    distribution = getattr(initializer, "distribution", "uniform")
    fan_in, fan_out = _compute_fans(shape)
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    variance = scale / max(1.0, fan)
    if distribution in ("normal", "truncated_normal"):
        return math.sqrt(variance) / _TRUNCATED_STDDEV * random.truncated_normal(random_bits)
    if distribution == "untruncated_normal":
        return math.sqrt(variance) * random.normal(random_bits)
    limit = math.sqrt(3.0 * variance)
    return -limit + 2.0 * limit * random.uniform(random_bits)
