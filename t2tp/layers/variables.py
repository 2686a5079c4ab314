"""Variables of layers: stored in float32, read in the activation dtype.

Frozen variables (`t2tp.building.adapters`) are stored in the activation dtype too, not only read.
Each function declares the role of its variable (`t2tp.building.role`).
"""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import context_of
from t2tp.building.role import BALANCE, BIAS, EMBEDDING, HEAD, MATRIX, NORM


def matrix(
    mesh: mtf.Mesh,
    name: str,
    inputs: Sequence[mtf.Dimension],
    outputs: Sequence[mtf.Dimension],
    stddev: float,
    dtype: tf.DType,
    *,
    experts: Sequence[mtf.Dimension] = (),
    is_adapter: bool = False,
    is_head: bool = False,
) -> mtf.Tensor:
    """Returns a matrix [experts, inputs, outputs] with normal initial values.

    Args:
      mesh: the program's mesh.
      name: variable name, relative to the current scope.
      inputs: dimensions to sum over.
      outputs: dimensions of the product.
      stddev: standard deviation of the initial values by the rule `fan_in`; 0: all are 0. The
        model's rule (`t2tp.building.initial_values`) scales this value, except for adapters.
      dtype: activation dtype.
      experts: dimensions along which each index has its own matrix.
      is_adapter: whether the matrix belongs to an adapter, so that it is never frozen.
      is_head: whether the outputs are scores of classes or experts; see `mtf.Role`.
    """
    role = mtf.Role(HEAD if is_head else MATRIX, inputs, outputs, experts)
    if not is_adapter:
        stddev *= context_of(mesh).initial_values.scale(role)
    return _variable(mesh, name, role, _normal(stddev), dtype, is_adapter)


def embedding(
    mesh: mtf.Mesh,
    name: str,
    rows: Sequence[mtf.Dimension],
    features: mtf.Dimension,
    stddev: float,
    dtype: tf.DType,
) -> mtf.Tensor:
    """Returns a table [rows, features] of vectors; for the arguments see `matrix`."""
    role = mtf.Role(EMBEDDING, rows, [features])
    return _variable(mesh, name, role, _normal(stddev), dtype)


def bias(
    mesh: mtf.Mesh,
    name: str,
    outputs: Sequence[mtf.Dimension],
    dtype: tf.DType,
    *,
    experts: Sequence[mtf.Dimension] = (),
    stddev: float = 0.0,
) -> mtf.Tensor:
    """Returns a bias [experts, outputs], by default 0; for the arguments see `matrix`."""
    role = mtf.Role(BIAS, (), outputs, experts)
    return _variable(mesh, name, role, _normal(stddev), dtype)


def balance(mesh: mtf.Mesh, name: str, experts: mtf.Dimension) -> mtf.Tensor:
    """Returns the variable `Router.balance`, float32 [experts], initially 0."""
    return _variable(mesh, name, mtf.Role(BALANCE, (), [experts]), _normal(0.0), tf.float32)


def norm(
    mesh: mtf.Mesh, name: str, dims: Sequence[mtf.Dimension], initial_value: float
) -> mtf.Tensor:
    """Returns the scale or the offset of a norm: float32 [dims]."""
    role = mtf.Role(NORM, (), dims)
    initializer = tf1.ones_initializer() if initial_value else tf1.zeros_initializer()
    return _variable(mesh, name, role, initializer, tf.float32)


def _normal(stddev: float) -> object:
    return tf1.random_normal_initializer(stddev=stddev) if stddev else tf1.zeros_initializer()


def _variable(
    mesh: mtf.Mesh,
    name: str,
    role: mtf.Role,
    initializer: object,
    dtype: tf.DType,
    is_adapter: bool = False,
) -> mtf.Tensor:
    adapters = None if is_adapter else context_of(mesh).adapters
    scope = tf1.get_variable_scope().name
    frozen = adapters is not None and adapters.freezes(f"{scope}/{name}" if scope else name)
    return mtf.get_variable(
        mesh,
        name,
        mtf.Shape(role.dims),
        dtype=mtf.VariableDType(dtype, dtype, dtype)
        if frozen
        else mtf.VariableDType(activation_dtype=dtype),
        initializer=initializer,
        frozen=frozen,
        role=role,
    )
