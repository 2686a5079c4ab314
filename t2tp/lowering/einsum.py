"""Lowers einsums to matmuls, or to table look-ups if one operand is a one-hot tensor.

mesh-tensorflow writes a gather and its gradient as einsums with a one-hot tensor. As matmuls, these
einsums take a fifth of a small language model's step. t2tp lowers the gather's einsum, which sums
over the one-hot dimension, to a look-up. It lowers the gradient's einsum to a segment sum: for each
id, the sum of the rows with this id. The one-hot tensor is materialized only if another operation
needs its elements. Other einsums become matmuls in `SpmdMeshImpl.einsum` and
`t2tp.lowering.matmul`.
"""

from collections.abc import Callable

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import LaidOutTensor
from t2tp.lowering.row_gather import TableRows
from t2tp.lowering.slice_shapes import arranged
from t2tp.mesh.graph_memo import GraphMemo


class LazyOneHot:
    """A one-hot tensor that is computed only if its elements are needed."""

    def __init__(self, make: Callable[[], LaidOutTensor], slice_shape: list[int]) -> None:
        self._make = make
        self.slice_shape = slice_shape
        self._made = GraphMemo()

    def to_laid_out_tensor(self) -> LaidOutTensor:
        """Returns the tensor, computed once in each TensorFlow graph that needs it."""
        return self._made((), self._make)


def lower_one_hot(op: upstream.ops.OneHotOperation, lowering: Lowering) -> None:
    """Sets the output to a `LazyOneHot`."""

    def make() -> LaidOutTensor:
        # `lower` replaces the lazy tensor by this graph's tensor. The lazy tensor is put back,
        # because another TensorFlow graph, such as a loop's body, needs its own tensor.
        with lowering.orders.during(op, lambda op: op.inputs):
            op.lower(lowering)
        made = lowering.tensors[output]
        lowering.tensors[output] = lazy
        return made

    output = op.outputs[0]
    lazy = LazyOneHot(make, lowering.mesh_impl(op).slice_shape(output.shape))
    lowering.set_tensor_lowering(output, lazy)


def lower_einsum(op: upstream.ops.EinsumOperation, lowering: Lowering) -> None:
    """Lowers an einsum to a matmul, a look-up, or a sum of rows per id."""
    by_rows = _by_rows(op)
    reduced = {d for x in op.inputs for d in x.shape.dims} - {*op.outputs[0].shape.dims}
    if not lowering.mesh_impl(op).computes:
        inputs = op.inputs if by_rows is None else by_rows[1:3]
        return lowering.set_shapes(op, inputs, reduced)
    if by_rows is not None:
        rule, ids, other, dim = by_rows
        return rule(ids, dim, other, op.outputs[0], lowering)
    with lowering.masking(op.inputs, reduced):
        return op.lower(lowering)


def row_operands(
    op: upstream.ops.EinsumOperation,
) -> tuple[upstream.Tensor, upstream.Tensor] | None:
    """Returns the ids and the other operand of a look-up or sum of rows; None for a matmul."""
    by_rows = _by_rows(op)
    return by_rows and (by_rows[1], by_rows[2])


def _by_rows(
    op: upstream.ops.EinsumOperation,
) -> tuple[Callable, upstream.Tensor, upstream.Tensor, upstream.Dimension] | None:
    """Returns `_look_up` or `_sum_of_rows`, the ids, the other operand and the one-hot dimension.

    Returns None if the einsum is neither.
    """
    for one_hot, other in (op.inputs, op.inputs[::-1]) if len(op.inputs) == 2 else ():
        if _is_one_hot(one_hot):
            ids, dim = one_hot.operation.inputs[0], one_hot.shape.dims[-1]
            if _is_look_up(ids, dim, other, op.outputs[0]):
                return _look_up, ids, other, dim
            if _is_sum_of_rows(ids, dim, other, op.outputs[0]):
                return _sum_of_rows, ids, other, dim
    return None


def _is_one_hot(tensor: upstream.Tensor) -> bool:
    op = tensor.operation
    return isinstance(op, upstream.ops.OneHotOperation) and (op._on_value, op._off_value) == (1, 0)


def _is_look_up(
    ids: upstream.Tensor, dim: upstream.Dimension, table: upstream.Tensor, output: upstream.Tensor
) -> bool:
    """Whether the einsum sums only over `dim`, so that it looks up rows of a table."""
    union = {*ids.shape.dims, *table.shape.dims}
    return dim in table.shape.dims and union - {dim} == set(output.shape.dims)


def _is_sum_of_rows(
    ids: upstream.Tensor, dim: upstream.Dimension, rows: upstream.Tensor, output: upstream.Tensor
) -> bool:
    """Whether the einsum sums the rows of each id: the gradient of a look-up."""
    summed = {*ids.shape.dims} - {*output.shape.dims}
    kept = {*ids.shape.dims, *rows.shape.dims, dim} - summed
    return (
        bool(summed)
        and summed <= {*rows.shape.dims}
        and dim not in rows.shape.dims
        and kept == {*output.shape.dims}
    )


def _look_up(
    ids: upstream.Tensor,
    dim: upstream.Dimension,
    table: upstream.Tensor,
    output: upstream.Tensor,
    lowering: Lowering,
) -> None:
    rows = TableRows(lowering, table.shape, ids, dim)
    picked = rows.pick(lowering.slice(table), tf.zeros([], table.dtype))
    rest = [d for d in table.shape.dims if d != dim and d not in ids.shape.dims]
    value = arranged(picked, [*ids.shape.dims, *rest], output.shape.dims)
    lowering.set_partial_sum(output, value, [dim])


def _sum_of_rows(
    ids: upstream.Tensor,
    dim: upstream.Dimension,
    rows: upstream.Tensor,
    output: upstream.Tensor,
    lowering: Lowering,
) -> None:
    listed = ids.shape.dims
    rest = [d for d in output.shape.dims if d != dim and d not in listed]
    own = [d for d in listed if d in rows.shape.dims]
    rows_slice = arranged(lowering.slice(rows), rows.shape.dims, [*own, *rest])
    if own != listed:
        # A dimension that only the ids have is broadcast in the rows.
        sizes = lowering.mesh_impl(rows).slice_shape(upstream.Shape([*listed, *rest]))
        expanded = [n if d in own else 1 for d, n in zip(listed, sizes, strict=False)]
        rows_slice = tf.reshape(rows_slice, [*expanded, *sizes[len(listed) :]])
        rows_slice = tf.broadcast_to(rows_slice, sizes)
    value = TableRows(lowering, output.shape, ids, dim).add_up(rows_slice)
    summed = [d for d in listed if d not in output.shape.dims]
    lowering.set_partial_sum(output, value, summed)
