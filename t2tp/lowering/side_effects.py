"""Operations with side effects, and operations that wait for others."""

from collections.abc import Callable, Iterable

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation


def conditional_updates(predicate: upstream.Tensor, operations: Iterable[Operation]) -> None:
    """Executes assignments only in steps where `predicate` is true.

    Args:
      predicate: a boolean scalar, computed by an operation that was built before the assignments.
      operations: the assignments, for example results of `mtf.assign`.
    """
    for op in operations:
        op.predicate = predicate


def lower_conditionally(
    op: upstream.Operation, predicate: upstream.Tensor, lower: Callable, lowering: Lowering
) -> None:
    """Lowers assignments that are executed only if `predicate` is true.

    A GPU's host would wait for a condition that the device computes. So a compiled step executes
    the assignments, and selects each variable's old or new value. XLA fuses the selection with the
    computation of the new value.
    """
    for tensor in op.inputs:
        # Reduces deferred sums outside the condition, so that other operations can use the result.
        lowering.slice(tensor)
    if lowering.mesh_impl(op).target.compiles_step:
        slices = [lowering.variables[x].laid_out_tensor.slice for x in op.variables]
        before = [variable.read_value() for variable in slices]
        lower(op, lowering)
        for variable, value in zip(slices, before, strict=True):
            after = tf.where(lowering.slice(predicate), variable, value)
            variable.assign(after, read_value=False)
        return

    def execute() -> tf.Operation:
        lower(op, lowering)
        return tf.group()

    tf.cond(lowering.slice(predicate), execute, lambda: tf.group())


def lower_depend(op: upstream.Depend, lowering: Lowering) -> None:
    """Copies a tensor after other tensors have been computed, or assignments executed.

    A deferred sum stays deferred.
    """
    waited_for: list = []
    for dependency in op._dependencies:
        if dependency in lowering.operations:
            waited_for.append(lowering.operations[dependency])
        else:
            tensors = (
                [dependency] if isinstance(dependency, upstream.Tensor) else dependency.outputs
            )
            waited_for += [lowering.slice(tensor) for tensor in tensors]
    value, axes = lowering.partial_sum(op.inputs[0])
    with tf.control_dependencies(waited_for):
        lowering.set_sum_over_axes(op.outputs[0], tf.identity(value), axes)


def lower_print(op: upstream.PrintOperation, lowering: Lowering) -> None:
    """Prints processor 0's slice of each tensor to standard error.

    Supports the arguments of `tf.compat.v1.Print`: `first_n` (how often to print) and `summarize`
    (number of elements per tensor).
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


def lower_scalar_summary(op: upstream.ScalarSummaryOperation, lowering: Lowering) -> None:
    """Passes the scalar on; the program outputs it as `summaries/<name>`."""
    lowering.set_tensor_lowering(op.outputs[0], lowering.tensors[op.inputs[0]])
