"""Operations that do something besides computing, or that wait for others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def only_if(condition: mtf.Tensor, operations: Iterable[mtf.Operation]) -> None:
    """Lets assignments happen only in steps where `condition` is true.

    Args:
      condition: a boolean scalar, computed by an operation that was built before the assignments.
      operations: the assignments.
    """
    for op in operations:
        op.only_if = condition


def lower_only_if(
    op: mtf.Operation, condition: mtf.Tensor, lower: Callable, lowering: Lowering
) -> None:
    """Lowers an operation without outputs so that it happens only where `condition` is true."""
    for tensor in op.inputs:
        lowering.slice(tensor)  # Sums over the mesh are made by all processors, or by none.

    def carry_out() -> tf.Operation:
        lower(op, lowering)
        return tf.group()

    tf.cond(lowering.slice(condition), carry_out, lambda: tf.group())


def lower_depend(op: mtf.Depend, lowering: Lowering) -> None:
    """Passes a tensor on when others have been computed, or assignments carried out.

    A sum that is still to be reduced over the mesh stays one.
    """
    waited_for: list = []
    for dependency in op._dependencies:
        if dependency in lowering.operations:
            waited_for.append(lowering.operations[dependency])
        else:
            tensors = [dependency] if isinstance(dependency, mtf.Tensor) else dependency.outputs
            waited_for += [lowering.slice(tensor) for tensor in tensors]
    value, axes = lowering.partial_sum(op.inputs[0])
    with tf.control_dependencies(waited_for):
        lowering.set_sum_over_axes(op.outputs[0], tf.identity(value), axes)


def lower_print(op: mtf.PrintOperation, lowering: Lowering) -> None:
    """Prints to standard error, once: what processor 0 holds of each tensor.

    Takes the arguments of `tf.compat.v1.Print`: `first_n` (print only so many times) and
    `summarize` (so many elements of each tensor).
    """
    slices = [lowering.slice(tensor) for tensor in op._data]
    pnum = lowering.mesh_impl(op).laid_out_pnum().slice

    def print_them() -> tf.Operation:
        printed = tf.compat.v1.Print(pnum, slices, op._message, **op._kwargs)
        return tf.group(printed)

    printing = tf.cond(tf.equal(pnum, 0), print_them, lambda: tf.group())
    with tf.control_dependencies([printing]):
        x = tf.identity(lowering.slice(op.inputs[0]))
    lowering.set_slice(op.outputs[0], x)


def lower_scalar_summary(op: mtf.ScalarSummaryOperation, lowering: Lowering) -> None:
    """Passes the scalar on; the program returns it, as `summaries/<name>`."""
    lowering.set_tensor_lowering(op.outputs[0], lowering.tensors[op.inputs[0]])
