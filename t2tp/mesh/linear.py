"""Operations that turn a part of a sum into the same part of their result.

A processor's part of a product whose summed dimension is split can be scaled, negated or transposed
before the parts are summed up. The sum over the mesh is then put off further where that pays: in
front of a reshape, with which it may become a reduce-scatter, and of a difference of two such sums.
Elsewhere sums are made before, all at once: a gradient that is scaled for the update of its
variable goes with the other gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.spmd import LaidOutTensor

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering

# From a tensor to the operations that use it; None stands for who asks for an output.
Users: TypeAlias = "Callable[[mtf.Tensor], Sequence[mtf.Operation | None]]"


def is_linear(op: mtf.Operation) -> bool:
    """Whether an operation is one of these."""
    if isinstance(op, mtf.EinsumOperation):  # of one tensor, in another order
        return len(op.inputs) == 1 and op.inputs[0].shape.size == op.outputs[0].shape.size
    return isinstance(op, mtf.ScalarMultiplyOperation) or _negates(op)


def puts_off(op: mtf.Operation, users: Users) -> bool:
    """Whether a sum is put off behind an operation: nobody else uses it, and it pays."""
    if not is_linear(op) or len(users(op.inputs[0])) != 1 or len(users(op.outputs[0])) != 1:
        return False
    (user,) = users(op.outputs[0])
    is_difference = isinstance(user, mtf.AddOperation) and _negates(op)
    return (
        is_difference
        or isinstance(user, mtf.ReshapeOperation)
        or (user is not None and puts_off(user, users))
    )


def lower_linear(op: mtf.Operation, lowering: Lowering) -> None:
    """Lowers an operation, and leaves the sum over the mesh that its input is for later."""
    (x,), (y,) = op.inputs, op.outputs
    whole = lowering.tensors[x]
    part, axes = lowering.partial_sum(x)
    lowering.tensors[x] = LaidOutTensor([part])
    op.lower(lowering)
    lowering.tensors[x] = whole
    lowering.set_sum_over_axes(y, lowering.slice(y), axes)


def lower_add(op: mtf.AddOperation, lowering: Lowering) -> None:
    """Adds; what is summed up over the mesh for others anyway is added after that, and not summed
    up once more."""
    if all(lowering.is_surely_needed(x) for x in op.inputs):
        for x in op.inputs:
            lowering.set_slice(x, lowering.slice(x))
    op.lower(lowering)


def _negates(op: mtf.Operation) -> bool:
    return isinstance(op, mtf.SlicewiseOperation) and op._tf_fn is tf.negative
