"""Attributes collectives to the tensors, dimensions and variables that need them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from t2tp import upstream
from t2tp.lowering.linear_operations import is_linear
from t2tp.lowering.operation import hooks, signature_of
from t2tp.mesh.collective_log import Collective
from t2tp.mesh.layer_names import GRADIENTS
from t2tp.mesh.layout import Layout


@dataclass(frozen=True)
class CollectiveUse:
    """A tensor that a collective serves.

    Attributes:
      tensor: the tensor's name; if unknown, the operation whose lowering emitted the collective.
      bytes: input bytes per processor.
      over: names of the summed or exchanged dimensions, as far as known.
      is_sum: whether the collective reduces a deferred sum.
      used: the variables from which the sum is computed, or the gathered variable.
      gradient_of: the variable whose gradient the tensor is.
      together: number of tensors that the collective serves.
    """

    tensor: str
    bytes: int
    over: tuple[str, ...]
    is_sum: bool = False
    used: tuple[str, ...] = ()
    gradient_of: str | None = None
    together: int = 1


class Attribution:
    """Finds the tensors in an mtf graph that each collective serves."""

    def __init__(self, operations: Sequence[upstream.Operation], layout: Layout) -> None:
        self._layout = layout
        self._operations = {op.name: op for op in operations}
        self._tensors = {tensor.name: tensor for op in operations for tensor in op.outputs}

    def uses(self, collective: Collective) -> tuple[CollectiveUse, ...]:
        """Returns the tensors that a collective serves, with the reasons."""
        if not collective.sums:
            return (self._of_operation(collective),)
        if collective.kind == "allgather":
            gathered = (_gathered_variable(self._operations[name]) for name in collective.sums)
            served = [variable for variable in gathered if variable is not None]
        else:
            served = [self._tensors[name] for name in collective.sums]
        elements = [math.prod(self._layout.slice_size(x.shape)) for x in served]
        itemsize, together = collective.bytes // sum(elements), len(served)
        uses = []
        for name, x, count in zip(collective.sums, served, elements, strict=True):
            size = count * itemsize
            if isinstance(x, upstream.Variable):
                uses.append(CollectiveUse(name, size, (), used=(x.name,), together=together))
            else:
                uses.append(self._of_sum(x, size, collective.axes, together))
        return tuple(uses)

    def _of_operation(self, collective: Collective) -> CollectiveUse:
        """Attributes a collective that an operation emits in `lower`."""
        op = self._operations.get(collective.operation)
        gathered = _gathered_variable(op)
        if gathered is not None:
            used = (gathered.name,)
            return CollectiveUse(collective.operation, collective.bytes, (), used=used)
        tensors = [] if op is None else [*op.inputs, *op.outputs]
        over = dict.fromkeys(dim for t in tensors for dim in self._split(t, collective.axes))
        return CollectiveUse(collective.operation, collective.bytes, tuple(over))

    def _of_sum(
        self, tensor: upstream.Tensor, num_bytes: int, axes: Sequence[str], together: int
    ) -> CollectiveUse:
        """Attributes the reduction of a deferred sum."""
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
        gradients = (self._gradient_of(t) for t in (tensor, *_sources(tensor)))
        gradient_of = next(filter(None, gradients), None)
        return CollectiveUse(
            tensor.name, num_bytes, tuple(over), True, tuple(used), gradient_of, together
        )

    def _gradient_of(self, tensor: upstream.Tensor) -> str | None:
        """Returns the variable whose gradient the tensor is; None if it is unknown.

        The variable has the tensor's dimensions, and is an input of the differentiated operation.
        If several variables fit, the result is None.
        """
        scope, separator, _ = tensor.operation.name.rpartition(GRADIENTS)
        differentiated = self._operations.get(scope)
        if not separator or differentiated is None:
            return None
        candidates = {
            variable.name
            for x in differentiated.inputs
            if set(x.shape.dims) == set(tensor.shape.dims)
            and (variable := _variable_behind(x)) is not None
        }
        return candidates.pop() if len(candidates) == 1 else None

    def _split(self, tensor: upstream.Tensor, axes: Sequence[str]) -> list[str]:
        """Returns the dimensions that are split over one of the axes."""
        return [
            name
            for name in tensor.shape.dimension_names
            if any(axis.name in axes for axis in self._layout.axes_of(name))
        ]


def _gathered_variable(op: upstream.Operation | None) -> upstream.Variable | None:
    """Returns the variable that an operation gathers because it is sharded at rest; else None."""
    if isinstance(op, upstream.Variable) or op is None:
        return op
    return op.inputs[0].operation if hooks(op).gathered_variable is not None else None


def _sources(tensor: upstream.Tensor) -> Iterator[upstream.Tensor]:
    """Yields the tensors from which only linear operations and loops compute a tensor."""
    op = tensor.operation
    if isinstance(op, upstream.WhileLoopOperation):
        of_body = dict(zip(op.outputs, op._body_outputs, strict=False))
        # Some outputs, such as a pipeline's `idle_share`, are not computed in the loop's body.
        if tensor in of_body:
            yield from _sources(of_body[tensor])
        else:
            yield tensor
        return
    if signature_of(op).linear or is_linear(op):
        for x in op.inputs:
            yield from _sources(x)
    else:
        yield tensor


def _variable_behind(tensor: upstream.Tensor) -> upstream.Variable | None:
    """Follows a tensor back to a variable, through operations with one input, such as casts.

    Returns None if an operation has another number of inputs.
    """
    operation = tensor.operation
    while not isinstance(operation, upstream.Variable):
        if len(operation.inputs) != 1:
            return None
        operation = operation.inputs[0].operation
    return operation
