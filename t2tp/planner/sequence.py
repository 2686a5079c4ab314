"""The operations of a step in the order of the program, each with its phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from t2tp import upstream
from t2tp.layout_report.attribution import GRADIENTS
from t2tp.lowering.lowering import all_operations, live_operations
from t2tp.mesh.collectives import Collective
from t2tp.mesh.storage import axes_at_rest
from t2tp.ops.variables.sharded_variable import GatherOperation
from t2tp.optim.gradient_accumulation import MicrobatchLoop
from t2tp.planner.work import BACKWARD, FORWARD, UPDATE

# Operations that return their input.
_IDENTITIES = (
    upstream.Depend,
    upstream.StopGradient,
    upstream.CustomGradientOperation,
    upstream.PrintOperation,
    upstream.ScalarSummaryOperation,
    upstream.WhileLoopOperation,
)


@dataclass(eq=False)
class Placed:
    """An operation at its place in the program.

    Attributes:
      operation: of the mtf graph.
      times: how often a step executes it.
      phase: of the step.
      is_recomputed: whether it repeats a part of the forward pass.
      collectives: that its lowering emits.
    """

    operation: upstream.Operation
    times: int
    phase: str = FORWARD
    is_recomputed: bool = False
    collectives: tuple[Collective, ...] = ()

    @property
    def is_view(self) -> bool:
        """Whether the output shares the memory of the input."""
        if isinstance(self.operation, upstream.ReshapeOperation):
            return not self.collectives
        return isinstance(self.operation, _IDENTITIES)

    @property
    def is_computed(self) -> bool:
        """Whether it moves bytes: a variable does if it is cast or gathered when it is read."""
        op = self.operation
        if isinstance(op, upstream.Variable):
            return op.slice_dtype != op.value.dtype or op.shape != op.value.shape
        return not self.is_view

    @property
    def is_of_state(self) -> bool:
        """Whether its collectives are of weights or gradients, and not of activations."""
        op = self.operation
        if isinstance(op, upstream.ReshapeOperation):
            return any(axes_at_rest(dim.name) for dim in op.outputs[0].shape.dims)
        return self.phase == UPDATE or isinstance(op, (upstream.Variable, GatherOperation))


def program_order(
    operations: Sequence[upstream.Operation],
    needed: Iterable[upstream.Tensor],
    collectives: Sequence[Collective],
    *,
    repeats_all: bool = False,
) -> list[Placed]:
    """Lists the operations that a step executes, with those of loops at the loop's place.

    Args:
      operations: of the graph.
      needed: outputs of the program.
      collectives: of the program, in its order.
      repeats_all: whether recomputation also repeats what no gradient needs.
    """
    placed = list(_flat(operations, needed, 1))
    _set_phases(placed)
    _place(collectives, placed)
    return _with_unneeded(placed, operations) if repeats_all else placed


def _with_unneeded(
    placed: Sequence[Placed], operations: Sequence[upstream.Operation]
) -> list[Placed]:
    """Adds the copies that nothing needs, with the collectives of what they are copies of."""
    live = {each.operation for each in placed}
    original: dict[str, Placed] = {}
    for each in placed:
        original.setdefault(each.operation.name, each)
    copies = [
        Placed(op, of.times, BACKWARD, True, of.collectives)
        for op in all_operations(operations)
        if op not in live and (of := original.get(op.name)) is not None and of.phase == FORWARD
    ]
    last = max((i for i, each in enumerate(placed) if each.is_recomputed), default=-1)
    return [*placed[: last + 1], *copies, *placed[last + 1 :]]


def _flat(
    operations: Sequence[upstream.Operation], needed: Iterable[upstream.Tensor], times: int
) -> Iterator[Placed]:
    for op in live_operations(operations, needed):
        if isinstance(op, upstream.WhileLoopOperation):
            count = op._count if isinstance(op, MicrobatchLoop) else 1
            yield from _flat(op._body_ops, op._body_outputs, times * count)
        yield Placed(op, times)


def _set_phases(placed: Sequence[Placed]) -> None:
    """Sets phases: the backward pass is from the first gradient or copy to the last one.

    An operation that is recomputed has the name of the one that it is a copy of.
    """
    seen: set[str] = set()
    backward = []
    for i, each in enumerate(placed):
        name = each.operation.name
        each.is_recomputed = name in seen and GRADIENTS not in name
        seen.add(name)
        if GRADIENTS in name or each.is_recomputed:
            backward.append(i)
    if not backward:
        return
    # A loop over microbatches, whose gradients are summed in it, belongs to the backward pass.
    loops = [i for i, p in enumerate(placed) if isinstance(p.operation, MicrobatchLoop)]
    end = max(backward[-1], *loops) if loops else backward[-1]
    for each in placed[backward[0] : end + 1]:
        each.phase = BACKWARD
    for each in placed[end + 1 :]:
        each.phase = UPDATE


def _place(collectives: Sequence[Collective], placed: Sequence[Placed]) -> None:
    """Gives each collective to the operation that emitted it; both are in program order."""
    position = 0
    for collective in collectives:
        for i in range(position, len(placed)):
            if placed[i].operation.name == collective.operation:
                position = i
                break
        placed[position].collectives += (collective,)
