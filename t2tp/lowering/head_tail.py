"""Head-tail order: each processor's slice is an early and a late part of a split dimension.

In causal attention a query attends to all earlier positions. With consecutive queries, the last
processor would compute more scores than any other, and the others would wait for it. For head-tail
order, processors k and n-1-k along an axis of n processors exchange the second halves of their
slices. Each slice then has an early and a late half, so all processors have equal work (A.
Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2). Four processors
hold these eighths of the positions:

    consecutive    0 1    2 3    4 5    6 7
    head-tail      0 7    2 5    4 3    6 1

Most operations do not depend on the order: permuted positions only permute their results. So a
tensor stays in head-tail order from the attention of one layer to the next. It is converted back
only for operations that depend on the order (`Signature.ordered`) and for the program's outputs.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from t2tp import upstream
from t2tp.lowering.context import Lowering, Order
from t2tp.lowering.mesh_impl import LaidOutTensor, SpmdMeshImpl
from t2tp.lowering.operation import hooks, signature_of
from t2tp.lowering.reshape import begins
from t2tp.lowering.signature import has
from t2tp.mesh.graph_memo import GraphMemo
from t2tp.mesh.set_temporarily import set_temporarily

CONSECUTIVE: Order = frozenset()


class Orders:
    """The order of each tensor of a lowering.

    Attributes:
      current: the order in which the operation that is being lowered reads its inputs and computes
        its outputs.
    """

    def __init__(
        self, lowering: Lowering, mesh_impl: SpmdMeshImpl, operations: Iterable[upstream.Operation]
    ) -> None:
        """Begins with all tensors consecutive.

        Finds the dimensions that the operations read in head-tail order.
        """
        self._lowering = lowering
        self._mesh_impl = mesh_impl
        self.current = CONSECUTIVE
        self._of: dict[upstream.Tensor, Order] = {}
        # Axes along which a tensor needs no exchange, because all its slices are equal.
        self._uniform: dict[upstream.Tensor, Order] = {}
        # The value of `current` when an operation was lowered.
        self._of_operation: dict[upstream.Operation, Order] = {}
        self._converted = GraphMemo()
        # Mesh axis -> names of the dimensions that some attention reads in head-tail order.
        self._head_tail_dims: dict[int, set[str]] = {}
        for op in operations:
            for dim in hooks(op).head_tail_dims(mesh_impl.layout):
                axis = mesh_impl.layout.axis_index(dim.name)
                if axis is not None and self.has_halves(axis, dim):
                    self._head_tail_dims.setdefault(axis, set()).add(dim.name)

    def of(self, tensor: upstream.Tensor) -> Order:
        """Returns the order in which a tensor should be read: its own order, except for features.

        A feature is read in head-tail order if attention needs this order. The feature is then
        exchanged once, and the tensors computed from it need no exchange.
        """
        if hooks(tensor.operation).is_feature:
            return frozenset(
                axis
                for axis, dim in self._split_dims(tensor)
                if dim.name in self._head_tail_dims.get(axis, ()) and self.has_halves(axis, dim)
            )
        return self._of.get(tensor, CONSECUTIVE)

    def set(self, tensor: upstream.Tensor, order: Order) -> None:
        """Sets the order of a lowered tensor, along the axes that split it."""
        if self._head_tail_dims:
            self._of[tensor] = order & self._axes_of(tensor)

    def _for_operation(self, op: upstream.Operation) -> Order:
        """Returns the order of an operation's inputs and outputs."""
        if isinstance(op, upstream.GenericGradOperation):
            # A gradient reads the tensors of the forward operation, so it needs their order.
            return self._of_operation.get(op._forward_op, CONSECUTIVE)
        axes = CONSECUTIVE.union(*(self.of(x) for x in _own_inputs(op)))
        return frozenset(axis for axis in axes if self._accepts(op, axis))

    @contextlib.contextmanager
    def during(
        self,
        op: upstream.Operation,
        read_by: Callable[[upstream.Operation], Sequence[upstream.Tensor]],
    ) -> Iterator[None]:
        """Inside the context, tensors that an operation reads are in the operation's order.

        `read_by` returns all tensors that an operation reads, also inside loop bodies.
        """
        if not self._head_tail_dims or hooks(op).chooses_orders:
            yield
            return
        order, outer = self._for_operation(op), self.current
        tensors = self._lowering.tensors
        converted = {
            x: self.converted(x, order)
            for x in (_own_inputs(op) if order else read_by(op))
            if self._axes_to_exchange(x, order)
        }
        before = {x: (tensors[x], self._of.get(x, CONSECUTIVE)) for x in converted}
        for x, laid_out in converted.items():
            tensors[x] = laid_out
            self.set(x, order)
        self.current = self._of_operation[op] = order
        for y in op.outputs:
            self._uniform[y] = self._uniform_axes(op, y)
        try:
            yield
        finally:
            self.current = outer
            for x, (laid_out, old_order) in before.items():
                tensors[x] = laid_out
                self.set(x, old_order)

    def isolated(self) -> contextlib.AbstractContextManager[None]:
        """When the context ends, discards the orders that were set inside it."""
        return set_temporarily(self, _of=dict(self._of))

    def has(self, tensor: upstream.Tensor) -> bool:
        """Whether a lowered tensor is in the current order."""
        return not self._axes_to_exchange(tensor, self.current)

    def converted(self, tensor: upstream.Tensor, order: Order) -> LaidOutTensor:
        """Returns a lowered tensor in `order`, along the axes that split it."""
        laid_out = self._lowering.tensors[tensor].to_laid_out_tensor()
        axes = self._axes_to_exchange(tensor, order)
        if not axes:
            return laid_out

        def exchange() -> LaidOutTensor:
            x = laid_out.slice
            for i, axis in enumerate(self._mesh_impl.tensor_layout(tensor)):
                if axis in axes:
                    x = self._mesh_impl.collectives.exchange_tails(x, axis, i)
            return LaidOutTensor([x])

        return self._converted((laid_out.slice.ref(), axes), exchange)

    def _axes_to_exchange(self, tensor: upstream.Tensor, order: Order) -> Order:
        """Returns the axes along which a lowered tensor must be exchanged to be in `order`."""
        if not self._head_tail_dims:
            return CONSECUTIVE
        current, target = self._of.get(tensor, CONSECUTIVE), order & self._axes_of(tensor)
        return (current ^ target) - self._uniform.get(tensor, CONSECUTIVE)

    def _accepts(self, op: upstream.Operation, axis: int) -> bool:
        """Whether an operation accepts inputs in head-tail order along an axis."""
        if isinstance(op, upstream.ReshapeOperation):
            return self._keeps_split(op.inputs[0].shape, op.outputs[0].shape, axis)
        split = {
            dim
            for tensor in (*_own_inputs(op), *op.outputs)
            for by, dim in self._split_dims(tensor)
            if by == axis
        }
        return all(self.has_halves(axis, d) and not _depends_on_order(op, d) for d in split)

    def _uniform_axes(self, op: upstream.Operation, y: upstream.Tensor) -> Order:
        """Returns the axes along which all slices of an output are equal."""
        varying = CONSECUTIVE.union(
            *(self._axes_of(x) - self._uniform.get(x, CONSECUTIVE) for x in _own_inputs(op))
        )
        return frozenset(
            axis
            for axis, dim in self._split_dims(y)
            if axis not in varying and not _depends_on_order(op, dim)
        )

    def _keeps_split(self, old: upstream.Shape, new: upstream.Shape, axis: int) -> bool:
        """Whether an axis splits the same *factor* of both shapes (`t2tp.lowering.reshape`)."""
        factors = [
            (begin, dim.size)
            for shape in (old, new)
            for begin, dim in begins(shape)
            if self._mesh_impl.tensor_dimension_to_mesh_axis(dim) == axis
        ]
        return len(factors) == 2 and factors[0] == factors[1]

    def has_halves(self, axis: int, dim: upstream.Dimension) -> bool:
        """Whether an axis splits a dimension into slices of even size, which can be halved."""
        return dim.size % (2 * self._mesh_impl.shape[axis].size) == 0

    def _split_dims(self, tensor: upstream.Tensor) -> list[tuple[int, upstream.Dimension]]:
        layout = self._mesh_impl.tensor_layout(tensor)
        return [
            (axis, dim)
            for axis, dim in zip(layout, tensor.shape.dims, strict=True)
            if axis is not None
        ]

    def _axes_of(self, tensor: upstream.Tensor) -> Order:
        return frozenset(axis for axis, _ in self._split_dims(tensor))


def _own_inputs(op: upstream.Operation) -> list[upstream.Tensor]:
    """Returns the inputs whose values the lowering of an operation reads."""
    if isinstance(op, upstream.CustomGradientOperation):
        return list(op._fn_outputs)
    return list(op.inputs)


def _depends_on_order(op: upstream.Operation, dim: upstream.Dimension) -> bool:
    """Whether the result depends on the order of the positions along a dimension."""
    signature = signature_of(op)
    return has(signature.ordered, op, dim) or has(signature.whole, op, dim)
