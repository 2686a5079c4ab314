"""Linear operations on partial sums.

If the summed dimension of a matmul is split, each processor has a partial sum. The processor can
scale, negate or transpose the partial sum before the all-reduce. This pays in two cases. If a
reshape follows, all-reduce and reshape may become one reduce-scatter. If the result is subtracted
from another sum, one all-reduce of the difference is enough. In all other cases the sum is reduced
before the linear operation, so that it can share a collective with other sums. For example,
gradients are reduced together before they are scaled.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import LaidOutTensor
from t2tp.lowering.slice_shapes import expanded

# Maps a tensor to the operations that use it; None stands for an output of the program.
Users: TypeAlias = "Callable[[upstream.Tensor], Sequence[upstream.Operation | None]]"


def is_linear(op: upstream.Operation) -> bool:
    """Whether an operation can be applied to the partial sums of its input."""
    if isinstance(op, upstream.EinsumOperation):  # A transposition of one tensor.
        return len(op.inputs) == 1 and op.inputs[0].shape.size == op.outputs[0].shape.size
    return isinstance(op, upstream.ScalarMultiplyOperation) or _negates(op)


def can_defer_past(op: upstream.Operation, users: Users) -> bool:
    """Whether it pays to defer a sum past an operation, and no other operation uses the sum."""
    if not is_linear(op) or len(users(op.inputs[0])) != 1 or len(users(op.outputs[0])) != 1:
        return False
    (user,) = users(op.outputs[0])
    is_difference = isinstance(user, upstream.AddOperation) and _negates(op)
    return (
        is_difference
        or isinstance(user, upstream.ReshapeOperation)
        or (user is not None and can_defer_past(user, users))
    )


def lower_linear(op: upstream.Operation, lowering: Lowering) -> None:
    """Applies an operation to a partial sum; the output is a deferred sum as well."""
    (x,), (y,) = op.inputs, op.outputs

    def lower(addend: tf.Tensor) -> tf.Tensor:
        # mesh-tensorflow's `lower` would reduce the input. So the partial sum replaces the input's
        # value while `lower` runs.
        deferred = lowering.tensors[x]
        lowering.tensors[x] = LaidOutTensor([addend])
        op.lower(lowering)
        lowering.tensors[x] = deferred
        return lowering.slice(y)

    is_scaled = isinstance(op, upstream.ScalarMultiplyOperation)
    if is_scaled and lowering.mesh_impl(op).layout.exact_sums:
        op.lower(lowering)
    else:
        lowering.map_sum(y, x, lower)


def lower_add(op: upstream.AddOperation, lowering: Lowering) -> None:
    """Adds two tensors.

    If both are deferred sums whose values other operations need, the reduced sums are added: adding
    the partial sums would cost a third all-reduce. If one tensor is a deferred sum, the other is a
    smaller tensor (a bias), and a reshape follows, the bias is added to the partial sum: all-reduce
    and reshape may then become one reduce-scatter.
    """
    (y,) = op.outputs
    if lowering.mesh_impl(op).layout.exact_sums:
        if lowering.add_parts(y, op.inputs):
            return
        needs_values = True
    else:
        for x, bias in (op.inputs, op.inputs[::-1]):
            if _add_bias(x, bias, y, lowering):
                return
        needs_values = lowering.needed.issuperset(op.inputs)
    if needs_values:
        for x in op.inputs:
            lowering.set_slice(x, lowering.slice(x))
    op.lower(lowering)


def _add_bias(
    x: upstream.Tensor, bias: upstream.Tensor, y: upstream.Tensor, lowering: Lowering
) -> bool:
    """Adds a bias to the partial sum of one member of each all-reduce, so that y stays deferred.

    It does so only if x is a deferred sum, nothing else needs x, and a reshape follows.

    Returns:
      whether it added the bias.
    """
    in_order = [dim for dim in y.shape.dims if dim in bias.shape.dims]
    if x.shape != y.shape or bias.shape.size >= y.shape.size or bias.shape.dims != in_order:
        return False
    of_x, of_y = lowering.users(x), lowering.users(y)
    if len(of_x) != 1 or len(of_y) != 1 or of_y[0] is None:
        return False
    is_reshaped = isinstance(of_y[0], upstream.ReshapeOperation)
    if not is_reshaped and not can_defer_past(of_y[0], lowering.users):
        return False
    addend, axes = lowering.partial_sum(x)
    if not axes or lowering.partial_sum(bias)[1]:
        return False
    collectives = lowering.mesh_impl(y).collectives
    is_first = tf.reduce_all([tf.equal(collectives.coordinate(axis), 0) for axis in axes])
    own = lowering.slice(bias)
    own = expanded(tf.where(is_first, own, tf.zeros_like(own)), bias.shape, y.shape)
    lowering.set_sum_over_axes(y, addend + own, axes)
    return True


def _negates(op: upstream.Operation) -> bool:
    return isinstance(op, upstream.SlicewiseOperation) and op._tf_fn is tf.negative
