"""Variables of layers: stored in float32, read in the activation dtype."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf


def weight(
    mesh: mtf.Mesh, name: str, dims: Sequence[mtf.Dimension], stddev: float, dtype: tf.DType
) -> mtf.Tensor:
    """Returns a variable with normal initial values.

    Args:
      mesh: the program's mesh.
      name: within the variable scope.
      dims: of the variable.
      stddev: standard deviation of the initial values, around 0.
      dtype: the dtype it is read in.
    """
    return _variable(mesh, name, dims, dtype, tf1.random_normal_initializer(stddev=stddev))


def zeros(mesh: mtf.Mesh, name: str, dims: Sequence[mtf.Dimension], dtype: tf.DType) -> mtf.Tensor:
    """Returns a variable initialized to 0, such as a bias; arguments as for `weight`."""
    return _variable(mesh, name, dims, dtype, tf1.zeros_initializer())


def ones(mesh: mtf.Mesh, name: str, dims: Sequence[mtf.Dimension], dtype: tf.DType) -> mtf.Tensor:
    """Returns a variable initialized to 1, such as a norm's scale; arguments as for `weight`."""
    return _variable(mesh, name, dims, dtype, tf1.ones_initializer())


def _variable(
    mesh: mtf.Mesh,
    name: str,
    dims: Sequence[mtf.Dimension],
    dtype: tf.DType,
    initializer: object,
) -> mtf.Tensor:
    return mtf.get_variable(
        mesh,
        name,
        mtf.Shape(list(dims)),
        dtype=mtf.VariableDType(activation_dtype=dtype),
        initializer=initializer,
    )
