"""Variables of layers: stored in float32, read in the activation dtype.

Where a model has adapters (`t2tp.layers.adapters`), its own variables are frozen, and stored in the
dtype that they are read in.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.layers.adapters import of_mesh


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


def trained(
    mesh: mtf.Mesh, name: str, dims: Sequence[mtf.Dimension], stddev: float, dtype: tf.DType
) -> mtf.Tensor:
    """Returns a variable as `weight` does, which is trained even where others are frozen."""
    initializer = (
        tf1.random_normal_initializer(stddev=stddev) if stddev else tf1.zeros_initializer()
    )
    return _variable(mesh, name, dims, dtype, initializer, is_adapter=True)


def _variable(
    mesh: mtf.Mesh,
    name: str,
    dims: Sequence[mtf.Dimension],
    dtype: tf.DType,
    initializer: object,
    is_adapter: bool = False,
) -> mtf.Tensor:
    adapters = None if is_adapter else of_mesh(mesh)
    scope = tf1.get_variable_scope().name
    frozen = adapters is not None and adapters.freezes(f"{scope}/{name}" if scope else name)
    return mtf.get_variable(
        mesh,
        name,
        mtf.Shape(list(dims)),
        dtype=mtf.VariableDType(dtype, dtype, dtype)
        if frozen
        else mtf.VariableDType(activation_dtype=dtype),
        initializer=initializer,
        frozen=frozen,
    )
