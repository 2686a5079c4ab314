"""Products with one-hot tensors, for what looking up costs.

mesh-tensorflow says gather as a product with a one-hot tensor, and the gradient of a gather is one
too. Done as matrix products these cost as much as the dimension is long: a fifth of a small
language model's step. A one-hot tensor is therefore not made when it is asked for, and a product
that sums it away becomes a look-up or a sum of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.lookup import Rows
from t2tp.mesh.spmd import LaidOutTensor

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


class LazyOneHot:
    """A one-hot tensor that is made only if it is needed as such."""

    def __init__(self, make: Callable[[], LaidOutTensor], slice_shape: list[int]) -> None:
        """Keeps how to make it."""
        self._make = make
        self.slice_shape = slice_shape
        # A tensor made inside a loop's body is of no use outside of it.
        self._made: dict[tf.Graph, LaidOutTensor] = {}

    def to_laid_out_tensor(self) -> LaidOutTensor:
        """Makes the tensor."""
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._made:
            self._made[graph] = self._make()
        return self._made[graph]


def lower_one_hot(op: mtf.ops.OneHotOperation, lowering: Lowering) -> None:
    """Leaves a one-hot tensor unmade."""

    def make() -> LaidOutTensor:
        op.lower(lowering)  # It says what the tensor is; that is taken back.
        made = lowering.tensors[output]
        lowering.tensors[output] = lazy
        return made

    output = op.outputs[0]
    lazy = LazyOneHot(make, lowering.mesh_impl(op).slice_shape(output.shape))
    lowering.set_tensor_lowering(output, lazy)


def lower_einsum(op: mtf.ops.EinsumOperation, lowering: Lowering) -> None:
    """Lowers a product, cheaply if it sums a one-hot tensor away."""
    if len(op.inputs) == 2:
        for one_hot, other in (op.inputs, op.inputs[::-1]):
            if _is_one_hot(one_hot):
                ids = one_hot.operation.inputs[0]
                dim = one_hot.shape.dims[-1]
                if _is_look_up(ids, dim, other, op.outputs[0]):
                    return _look_up(ids, dim, other, op.outputs[0], lowering)
                if _is_sum_of_rows(ids, dim, other, op.outputs[0]):
                    return _sum_of_rows(ids, dim, other, op.outputs[0], lowering)
    return op.lower(lowering)


def _is_one_hot(tensor: mtf.Tensor) -> bool:
    op = tensor.operation
    return isinstance(op, mtf.ops.OneHotOperation) and (op._on_value, op._off_value) == (1, 0)


def _is_look_up(ids: mtf.Tensor, dim: mtf.Dimension, table: mtf.Tensor, output: mtf.Tensor) -> bool:
    """Whether the product sums over `dim` and nothing else."""
    union = {*ids.shape.dims, *table.shape.dims}
    return dim in table.shape.dims and union - {dim} == set(output.shape.dims)


def _is_sum_of_rows(
    ids: mtf.Tensor, dim: mtf.Dimension, rows: mtf.Tensor, output: mtf.Tensor
) -> bool:
    """Whether the product sorts rows by id, and sums those of an id."""
    summed = {*ids.shape.dims} - {*output.shape.dims}
    kept = {*ids.shape.dims, *rows.shape.dims, dim} - summed
    return (
        bool(summed)
        and summed <= {*rows.shape.dims}
        and dim not in rows.shape.dims
        and kept == {*output.shape.dims}
    )


def _look_up(
    ids: mtf.Tensor,
    dim: mtf.Dimension,
    table: mtf.Tensor,
    output: mtf.Tensor,
    lowering: Lowering,
) -> None:
    rows = Rows(lowering, table.shape, ids, dim)
    picked = rows.pick(lowering.slice(table), tf.zeros([], table.dtype))
    rest = [d for d in table.shape.dims if d != dim and d not in ids.shape.dims]
    value = _ordered(picked, [*ids.shape.dims, *rest], output.shape.dims)
    lowering.set_partial_sum(output, value, [dim])


def _sum_of_rows(
    ids: mtf.Tensor,
    dim: mtf.Dimension,
    rows: mtf.Tensor,
    output: mtf.Tensor,
    lowering: Lowering,
) -> None:
    listed = ids.shape.dims
    rest = [d for d in output.shape.dims if d != dim and d not in listed]
    own = [d for d in listed if d in rows.shape.dims]
    rows_slice = _ordered(lowering.slice(rows), rows.shape.dims, [*own, *rest])
    if own != listed:
        # A dimension that only the ids have is broadcast into the rows.
        sizes = lowering.mesh_impl(rows).slice_shape(mtf.Shape([*listed, *rest]))
        expanded = [n if d in own else 1 for d, n in zip(listed, sizes, strict=False)]
        rows_slice = tf.reshape(rows_slice, [*expanded, *sizes[len(listed) :]])
        rows_slice = tf.broadcast_to(rows_slice, sizes)
    value = Rows(lowering, output.shape, ids, dim).add_up(rows_slice)
    summed = [d for d in listed if d not in output.shape.dims]
    lowering.set_partial_sum(output, value, summed)


def _ordered(
    x: tf.Tensor, dims: Sequence[mtf.Dimension], wanted: Sequence[mtf.Dimension]
) -> tf.Tensor:
    """Transposes a slice from one order of its dimensions to another."""
    if list(dims) == list(wanted):
        return x
    return tf.transpose(x, [list(dims).index(d) for d in wanted])
