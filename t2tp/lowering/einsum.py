"""Lowers einsums to matmuls, or to table look-ups if one operand is a one-hot tensor.

mesh-tensorflow writes a gather and its gradient as einsums with a one-hot tensor. As matmuls, these
einsums take a fifth of a small language model's step. t2tp lowers the gather's einsum, which sums
over the one-hot dimension, to a look-up. It lowers the gradient's einsum to a segment sum: for each
id, the sum of the rows with this id. The one-hot tensor is materialized only if another operation
needs its elements. Other einsums become matmuls in `SpmdMeshImpl.einsum` and
`t2tp.lowering.matmul`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import LaidOutTensor, LazyTensor
from t2tp.lowering.row_gather import TableRows
from t2tp.lowering.slice_shapes import arranged


def lower_one_hot(op: upstream.ops.OneHotOperation, lowering: Lowering) -> None:
    """Sets the output to a lazy tensor: a look-up needs no elements of a one-hot tensor."""

    def make() -> LaidOutTensor:
        # `lower` replaces the lazy tensor by this graph's tensor. The lazy tensor is put back,
        # because another TensorFlow graph, such as a loop's body, needs its own tensor.
        with lowering.orders.during(op, lambda op: op.inputs):
            op.lower(lowering)
        made = lowering.tensors[output]
        lowering.tensors[output] = lazy
        return made

    output = op.outputs[0]
    lazy = LazyTensor(make, lowering.mesh_impl(op).slice_shape(output.shape))
    lowering.set_tensor_lowering(output, lazy)


def lower_einsum(op: upstream.ops.EinsumOperation, lowering: Lowering) -> None:
    """Lowers an einsum to a matmul, a look-up, or a sum of rows per id."""
    if not lowering.mesh_impl(op).computes:
        return lowering.set_shapes(op, operands(op))
    if (rows := rows_of(op)) is not None:
        return rows.look_up(lowering) if rows.is_look_up else rows.add_up(lowering)
    reduced = {d for x in op.inputs for d in x.shape.dims} - {*op.outputs[0].shape.dims}
    with lowering.masking(op.inputs, reduced):
        return op.lower(lowering)


def operands(op: upstream.ops.EinsumOperation) -> Sequence[upstream.Tensor]:
    """Returns the tensors that an einsum reads: a look-up reads ids instead of a one-hot tensor."""
    rows = rows_of(op)
    return op.inputs if rows is None else (rows.ids, rows.other)


def rows_of(op: upstream.ops.EinsumOperation) -> RowOperands | None:
    """Returns the operands of a look-up or of a sum of rows; None for other einsums."""
    for one_hot, other in (op.inputs, op.inputs[::-1]) if len(op.inputs) == 2 else ():
        if _is_one_hot(one_hot):
            rows = RowOperands(
                one_hot.operation.inputs[0], one_hot.shape.dims[-1], other, op.outputs[0]
            )
            if rows.is_look_up or rows.is_sum_of_rows:
                return rows
    return None


def _is_one_hot(tensor: upstream.Tensor) -> bool:
    op = tensor.operation
    return isinstance(op, upstream.ops.OneHotOperation) and (op._on_value, op._off_value) == (1, 0)


class RowOperands(NamedTuple):
    """The operands of an einsum with a one-hot tensor.

    Attributes:
      ids: the input of the one-hot tensor.
      dim: the one-hot dimension.
      other: the other operand: a table, or rows to sum.
      output: the result.
    """

    ids: upstream.Tensor
    dim: upstream.Dimension
    other: upstream.Tensor
    output: upstream.Tensor

    @property
    def is_look_up(self) -> bool:
        """Whether the einsum sums only over `dim`, so that it looks up rows of a table."""
        union = {*self.ids.shape.dims, *self.other.shape.dims}
        is_in_table = self.dim in self.other.shape.dims
        return is_in_table and union - {self.dim} == {*self.output.shape.dims}

    @property
    def is_sum_of_rows(self) -> bool:
        """Whether the einsum sums the rows of each id: the gradient of a look-up."""
        ids, rows, output = ({*x.shape.dims} for x in (self.ids, self.other, self.output))
        summed = ids - output
        kept = (ids | rows | {self.dim}) - summed
        return bool(summed) and summed <= rows and self.dim not in rows and kept == output

    def look_up(self, lowering: Lowering) -> None:
        """Sets the output to the rows of a table that the ids select."""
        table, listed = self.other, self.ids.shape.dims
        rows = TableRows(lowering, table.shape, self.ids, self.dim)
        picked = rows.pick(lowering.slice(table), tf.zeros([], table.dtype))
        rest = [d for d in table.shape.dims if d != self.dim and d not in listed]
        value = arranged(picked, [*listed, *rest], self.output.shape.dims)
        lowering.set_partial_sum(self.output, value, [self.dim])

    def add_up(self, lowering: Lowering) -> None:
        """Sets the output to the sum of the rows of each id."""
        rows, output, listed = self.other, self.output, self.ids.shape.dims
        rest = [d for d in output.shape.dims if d != self.dim and d not in listed]
        own = [d for d in listed if d in rows.shape.dims]
        rows_slice = arranged(lowering.slice(rows), rows.shape.dims, [*own, *rest])
        if own != listed:
            # A dimension that only the ids have is broadcast in the rows.
            sizes = lowering.mesh_impl(rows).slice_shape(upstream.Shape([*listed, *rest]))
            expanded = [n if d in own else 1 for d, n in zip(listed, sizes, strict=False)]
            rows_slice = tf.reshape(rows_slice, [*expanded, *sizes[len(listed) :]])
            rows_slice = tf.broadcast_to(rows_slice, sizes)
        value = TableRows(lowering, output.shape, self.ids, self.dim).add_up(rows_slice)
        summed = [d for d in listed if d not in output.shape.dims]
        lowering.set_partial_sum(output, value, summed)
