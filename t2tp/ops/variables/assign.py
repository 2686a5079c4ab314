"""Assignments that a predicate can make conditional (see `Hooks.predicate`)."""

from collections.abc import Callable

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.operation import Operation
from t2tp.mesh.storage import shape_in_use


class Assign(Operation, upstream.Assign):
    """Assigns each input to a variable. Has no outputs."""


def assign(
    var: upstream.Variable | upstream.Tensor,
    new_val: upstream.Tensor,
    assign_fn: Callable[..., tf.Operation] = upstream.ops.assign_slice,
    name: str | None = None,
) -> Assign:
    """Assigns a new value to a variable when the step is executed.

    Args:
      var: a variable, its value, or the result of unary operations on its value.
      new_val: the new value.
      assign_fn: `(mtf.Variable, tf.Variable, tf.Tensor) -> tf.Operation`.
      name: operation name.

    Raises:
      ValueError: `var` does not come from a variable.
    """
    given = var
    op = var.operation if isinstance(var, upstream.Tensor) else var
    while not isinstance(op, upstream.Variable):
        if len(op.inputs) != 1:
            raise ValueError(f"assign: {given} is not the value of a variable.")
        op = op.inputs[0].operation
    if new_val.shape != op.shape and new_val.shape == shape_in_use(op.shape):
        new_val = upstream.reshape(new_val, op.shape)
    return Assign([op], [new_val], assign_fn=assign_fn, name=name)


def assign_add(var: upstream.Variable | upstream.Tensor, new_val: upstream.Tensor) -> Assign:
    """Adds to a variable; see `assign`."""
    return assign(var, new_val, upstream.ops.assign_add_slice)


def assign_sub(var: upstream.Variable | upstream.Tensor, new_val: upstream.Tensor) -> Assign:
    """Subtracts from a variable; see `assign`."""
    return assign(var, new_val, upstream.ops.assign_sub_slice)
