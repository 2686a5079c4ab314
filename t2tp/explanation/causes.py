"""Why a collective is there: which tensors it completes, over which dimensions, for which
variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from t2tp import upstream as mtf
from t2tp.explanation.contents import Share
from t2tp.mesh.collectives import Collective
from t2tp.mesh.layout import Layout
from t2tp.mesh.linear import is_linear

# mtf.gradients makes the gradients of an operation in a scope of this name below the operation's.
GRADIENTS = "/gradients/"

# Operations that pass a sum on which is still to be made over the mesh.
_PASSING_ON = (
    mtf.AddOperation,
    mtf.Depend,
    mtf.ReshapeOperation,
    mtf.StopGradient,
    mtf.CustomGradientOperation,
)


class Causes:
    """Finds the causes of a program's collectives in its mtf graph."""

    def __init__(self, operations: Sequence[mtf.Operation], layout: Layout) -> None:
        """Takes all operations of the graph, those inside loops too."""
        self._layout = layout
        self._operations = {op.name: op for op in operations}
        self._tensors = {tensor.name: tensor for op in operations for tensor in op.outputs}

    def shares(self, collective: Collective) -> tuple[Share, ...]:
        """What a collective does for which tensors."""
        if not collective.sums:
            return (self._of_operation(collective),)
        tensors = [self._tensors[name] for name in collective.sums]
        elements = [math.prod(self._layout.slice_size(t.shape)) for t in tensors]
        itemsize = collective.bytes // sum(elements)
        return tuple(
            self._of_sum(tensor, count * itemsize, collective.axes, len(tensors))
            for tensor, count in zip(tensors, elements, strict=True)
        )

    def _of_operation(self, collective: Collective) -> Share:
        """What an operation asked for while it was lowered."""
        op = self._operations.get(collective.operation)
        tensors = [] if op is None else [*op.inputs, *op.outputs]
        over = dict.fromkeys(dim for t in tensors for dim in self._split(t, collective.axes))
        return Share(collective.operation, collective.bytes, tuple(over))

    def _of_sum(
        self, tensor: mtf.Tensor, num_bytes: int, axes: Sequence[str], together: int
    ) -> Share:
        """What a sum over split dimensions is for."""
        over: dict[str, None] = {}
        used: dict[str, None] = {}
        for source in _sources(tensor):
            lost = [
                dim
                for x in source.operation.inputs
                for dim in self._split(x, axes)
                if dim not in source.shape.dimension_names
            ]
            over.update(dict.fromkeys(lost))
            for x in source.operation.inputs:
                variable = _variable_behind(x)
                if variable is not None and set(lost) & set(x.shape.dimension_names):
                    used[variable.name] = None
        found = (self._gradient_of(t) for t in (tensor, *_sources(tensor)))
        gradient_of = next(filter(None, found), None)
        return Share(tensor.name, num_bytes, tuple(over), True, tuple(used), gradient_of, together)

    def _gradient_of(self, tensor: mtf.Tensor) -> str | None:
        """The variable whose gradient the tensor is: the operation that is differentiated has one
        input of the tensor's shape that is a variable."""
        scope, found, _ = tensor.operation.name.rpartition(GRADIENTS)
        differentiated = self._operations.get(scope)
        if not found or differentiated is None:
            return None
        candidates = {
            variable.name
            for x in differentiated.inputs
            if set(x.shape.dims) == set(tensor.shape.dims)
            and (variable := _variable_behind(x)) is not None
        }
        return candidates.pop() if len(candidates) == 1 else None

    def _split(self, tensor: mtf.Tensor, axes: Sequence[str]) -> list[str]:
        """Names of the tensor's dimensions that are split over one of the axes."""
        by = {name: self._layout.axis_of(name) for name in tensor.shape.dimension_names}
        return [name for name, axis in by.items() if axis is not None and axis.name in axes]


def _sources(tensor: mtf.Tensor) -> Iterator[mtf.Tensor]:
    """The tensor or, where it was only passed on, scaled or added up, those that it was made of."""
    op = tensor.operation
    if isinstance(op, mtf.WhileLoopOperation):
        yield from _sources(op._body_outputs[op.outputs.index(tensor)])
        return
    passes_on = isinstance(op, _PASSING_ON) or getattr(op, "passes_on_sums", False)
    if passes_on or is_linear(op):
        for x in op.inputs:
            yield from _sources(x)
    else:
        yield tensor


def _variable_behind(tensor: mtf.Tensor) -> mtf.Variable | None:
    """The variable that the tensor is, perhaps cast or in another order."""
    operation = tensor.operation
    while not isinstance(operation, mtf.Variable):
        if len(operation.inputs) != 1:
            return None
        operation = operation.inputs[0].operation
    return operation
