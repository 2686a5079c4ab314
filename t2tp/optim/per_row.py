"""Computes the loss and the gradient norm of each row of a batch, in the graph of the batch.

A batch's loss and its gradients are sums over the dimension `batch`. The operations that sum over
`batch` are copied, and the copies keep `batch` in their outputs. All operations before these sums
are computed only once. For a dense layer x w, where dy is the gradient w.r.t. its output,

    gradient w.r.t. w            einsum([dy, x], [d_in, d_out])            [d_in, d_out]
    each row's gradient          einsum([dy, x], [batch, d_in, d_out])     [batch, d_in, d_out]

(I. Goodfellow, "Efficient Per-Example Gradient Computations", arXiv:1510.01799, does this for
matmuls.) A row's gradient is not all-reduced over the axes of the batch.
"""

import copy
from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf, upstream
from t2tp.building.mesh import Mesh, is_balance
from t2tp.lowering.lowering import live_operations
from t2tp.lowering.operation import signature_of
from t2tp.lowering.signature import DROPPED, has
from t2tp.ops.cast import CastOperation
from t2tp.ops.variables.zero_weights import gradients_at_rest
from t2tp.optim.clipping import global_norm
from t2tp.optim.gradient_accumulation import variable_gradients

_WITH_CONSTANT = (upstream.ScalarAddOperation, upstream.ScalarMultiplyOperation)


class RowsMixedError(ValueError):
    """The rows of a batch cannot be separated in the graph of a loss or of its gradients."""


def row_losses_and_norms(
    loss: mtf.Tensor, batch: mtf.Dimension, mesh: Mesh
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Computes the loss of each row, and the norm of the row's gradient.

    The gradients of all rows are in memory at once: `batch.size` times the trainable parameters.

    Args:
      loss: the loss of the batch, a float32 scalar; the last operation of the graph.
      batch: the dimension of the rows.
      mesh: the program's mesh, without stages.

    Returns:
      losses and L2 norms, each float32 [batch]. The norms exclude variables that balance experts.

    Raises:
      RowsMixedError: an operation combines several rows, such as experts that take tokens from
        several rows; or an operation sums over rows in an unsupported way; or a sum over rows is
        multiplied by a constant (as in a mean), or added to a constant. A batch of one row never
        raises this error.
    """
    if batch.size == 1:
        grads = gradients_at_rest(variable_gradients(loss, mesh), mesh.graph.trainable_variables)
        norm = global_norm(_with_norm(grads, mesh))
        return mtf.reshape(loss, mtf.Shape([batch])), mtf.reshape(norm, mtf.Shape([batch]))
    rows = _RowSums(batch)
    losses = rows.of(loss)
    rows.check_constants()
    rows.check_separate(live_operations(mesh.graph.operations, [losses], with_effects=False))
    grads = _with_norm(variable_gradients(mtf.reduce_sum(losses), mesh), mesh)
    grads = [rows.of(_in_use(g)) for g in grads]
    squares = [
        mtf.reduce_sum(mtf.square(mtf.cast(grad, tf.float32)), output_shape=mtf.Shape([batch]))
        for grad in grads
    ]
    return losses, mtf.sqrt(mtf.add_n(squares))


def _with_norm(grads: Sequence[mtf.Tensor], mesh: Mesh) -> list[mtf.Tensor]:
    """Returns the gradients that the step's `gradient_norm` includes."""
    variables = mesh.graph.trainable_variables
    return [g for v, g in zip(variables, grads, strict=True) if not is_balance(v)]


def _in_use(grad: mtf.Tensor) -> mtf.Tensor:
    """Returns a gradient before its reshape to the shape at rest; both have the same norm.

    A gradient with the dimension `batch` cannot have the shape at rest. In this shape, the axes
    that split `batch` may split another dimension, but an axis can split only one dimension.
    """
    while isinstance(grad.operation, upstream.ReshapeOperation | CastOperation):
        (grad,) = grad.operation.inputs
    return grad


class _RowSums:
    """Copies of the operations that sum over rows, with the dimension of the rows kept."""

    def __init__(self, batch: mtf.Dimension) -> None:
        self._batch = batch
        self._copies: dict[mtf.Tensor, mtf.Tensor] = {}

    def of(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns the addends [batch, ...] of a sum x [...] over rows; x itself if it is no sum."""
        if self._batch in x.shape.dims:
            return x
        if x not in self._copies:
            op = x.operation
            inputs = [self.of(each) for each in op.inputs]
            if inputs == op.inputs and not any(map(self._has_rows, inputs)):
                self._copies |= {y: y for y in op.outputs}
            else:
                self._copies |= zip(op.outputs, self._copy(op, inputs), strict=True)
        return self._copies[x]

    def check_constants(self) -> None:
        """Checks that no sum over rows has been scaled by a constant, or added to a constant.

        The constant may be 1 / `batch.size`, and would then be different in a batch of one row.
        """
        for x, y in self._copies.items():
            op, inputs = x.operation, y.operation.inputs
            is_scaled = (
                isinstance(op, upstream.EinsumOperation)
                and not any(map(self._has_rows, op.inputs))
                and not all(map(self._has_rows, inputs))
            )
            if x is not y and (is_scaled or isinstance(op, _WITH_CONSTANT)):
                raise RowsMixedError(
                    f"operation {op.name!r} has a constant that may contain the number of rows"
                )

    def check_separate(self, operations: Sequence[mtf.Operation]) -> None:
        """Checks that no operation combines several rows."""
        for op in operations:
            reads_rows = any(map(self._has_rows, op.inputs))
            keeps_rows = all(map(self._has_rows, op.outputs))
            combines_rows = has(signature_of(op).combined, op, self._batch)
            if reads_rows and (not keeps_rows or combines_rows):
                raise RowsMixedError(f"operation {op.name!r} computes with several rows at once")

    def _has_rows(self, x: mtf.Tensor) -> bool:
        return self._batch in x.shape.dims

    def _copy(self, op: mtf.Operation, inputs: list[mtf.Tensor]) -> list[mtf.Tensor]:
        """Adds a copy of an operation to the graph; returns its outputs, all with rows."""
        signature, shape = signature_of(op), op.outputs[0].shape
        is_cwise = (
            isinstance(op, upstream.SlicewiseOperation)
            and all(x.shape == shape for x in (*op.inputs, *op.outputs))
            and {*shape.dimension_names} <= {*op.splittable_dims}
        )
        keeps_apart = not isinstance(op, upstream.SlicewiseOperation) and (
            isinstance(op, upstream.ReshapeOperation) or signature.is_elementwise(op, self._batch)
        )
        if not (signature.summed is DROPPED or is_cwise or keeps_apart):
            raise RowsMixedError(f"operation {op.name!r} ({type(op).__name__}) sums over rows")
        if is_cwise:
            inputs = [mtf.broadcast(x, self._with_rows(op.outputs[0])) for x in inputs]
        new = copy.copy(op)
        new._inputs = inputs
        new._splittable_dims = op.splittable_dims | {self._batch.name}
        new._unsplittable_dims = op.unsplittable_dims - {self._batch.name}
        new._outputs = [
            mtf.Tensor(new, self._with_rows(y), y.dtype, y.name, i)
            for i, y in enumerate(op.outputs)
        ]
        op.graph.operations.append(new)
        return new._outputs

    def _with_rows(self, x: mtf.Tensor) -> mtf.Shape:
        return x.shape if self._has_rows(x) else mtf.Shape([self._batch, *x.shape.dims])
