"""Lists the operations of a step in program order, each with its phase."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from t2tp import upstream
from t2tp.lowering.lowering import all_operations, live_operations
from t2tp.lowering.operation import hooks, signature_of
from t2tp.mesh.collective_log import Collective
from t2tp.mesh.layer_names import GRADIENTS, layer_of
from t2tp.mesh.storage import axes_at_rest
from t2tp.ops.cast import CastOperation
from t2tp.ops.microbatch_sums import MicrobatchSums
from t2tp.pipeline.boundary import EnterStage
from t2tp.pipeline.loop import PipelineLoop
from t2tp.pipeline.schedule import Action
from t2tp.step.work import BACKWARD, FORWARD, LOOP, UPDATE, VIEW

# The pipeline stages: with the model's beginning (the embeddings), only layers, its end (the loss).
FIRST, MIDDLE, LAST = "first", "middle", "last"


@dataclass(eq=False)
class Placed:
    """An operation at its place in the program.

    Attributes:
      times: number of executions in a step.
      is_recomputed: whether it repeats a part of the forward pass.
      collectives: collectives that its lowering emits.
      part: pipeline entries that execute it; see `Work.part`.
      stage: `first` or `last` if only that pipeline stage executes it.
      passes_on: whether it returns its inputs unchanged.
      in_loop: whether every iteration of a loop executes it.
    """

    operation: upstream.Operation
    times: int
    phase: str = FORWARD
    is_recomputed: bool = False
    collectives: tuple[Collective, ...] = ()
    part: str = ""
    stage: str = ""
    passes_on: bool = False
    in_loop: bool = False

    @property
    def is_view(self) -> bool:
        """Whether the output shares the memory of the input."""
        if isinstance(self.operation, upstream.ReshapeOperation):
            return not self.collectives
        return self.passes_on or signature_of(self.operation).cost in (VIEW, LOOP)

    @property
    def is_computed(self) -> bool:
        """Whether it moves bytes. A variable's read moves bytes only if it casts or gathers."""
        op = self.operation
        if isinstance(op, upstream.Variable):
            return op.slice_dtype != op.value.dtype or op.shape != op.value.shape
        return not self.is_view

    @property
    def is_of_state(self) -> bool:
        """Whether its collectives carry weights or gradients, and not activations."""
        op = self.operation
        if isinstance(op, MicrobatchSums):  # The loop ends with reductions of gradients.
            return True
        if isinstance(op, upstream.ReshapeOperation):
            return any(axes_at_rest(dim.name) for dim in op.outputs[0].shape.dims)
        return self.phase == UPDATE or is_weight(op)


def is_weight(op: upstream.Operation) -> bool:
    """Whether an operation reads a variable, or gathers one that is sharded at rest."""
    return isinstance(op, upstream.Variable) or hooks(op).gathered_variable is not None


def program_order(
    operations: Sequence[upstream.Operation],
    needed: Iterable[upstream.Tensor],
    collectives: Sequence[Collective],
    *,
    repeats_all: bool = False,
) -> list[Placed]:
    """Lists the operations that a step executes, with each loop's body before the loop.

    If `repeats_all`, recomputation also repeats operations that no gradient needs.
    """
    placed = list(_flat(operations, needed, 1))
    _set_phases(placed)
    _place(collectives, placed)
    return _with_unneeded(placed, operations) if repeats_all else placed


def of_stage(placed: Sequence[Placed], place: str) -> list[Placed]:
    """Returns the operations that the `first`, a `middle` or the `last` pipeline stage executes."""
    return [
        # The first stage computes the layers' input itself and receives no message.
        replace(each, passes_on=True)
        if place == FIRST and isinstance(each.operation, EnterStage)
        else each
        for each in placed
        if each.stage in ("", place)
    ]


def as_soon_as_possible(placed: Sequence[Placed]) -> list[Placed]:
    """Moves the casts and reduce-scatters of each gradient to where the gradient is computed.

    In the graph, these operations come after the whole backward pass, but a processor executes an
    operation as soon as its inputs are ready.
    """
    followers: dict[upstream.Tensor, list[Placed]] = {}
    rest = []
    for each in placed:
        if _is_of_gradient(each):
            moved = replace(each, phase=BACKWARD) if each.phase == UPDATE else each
            followers.setdefault(each.operation.inputs[0], []).append(moved)
        else:
            rest.append(each)
    made: list[Placed] = []
    for each in rest:
        made.append(each)
        ready = list(each.operation.outputs)
        while ready:
            for follower in followers.pop(ready.pop(0), []):
                made.append(follower)
                ready += follower.operation.outputs
    return [*made, *(each for late in followers.values() for each in late)]


def _is_of_gradient(each: Placed) -> bool:
    """Whether an operation casts or shards the gradient of a variable."""
    op = each.operation
    if each.phase == FORWARD or each.is_recomputed or GRADIENTS in op.name:
        return False
    return isinstance(op, CastOperation) or is_sharding(each)


def is_sharding(each: Placed) -> bool:
    """Whether an operation of the backward pass or the update shards a gradient."""
    is_reshape = isinstance(each.operation, upstream.ReshapeOperation)
    return is_reshape and each.phase != FORWARD and each.is_of_state


def _with_unneeded(
    placed: Sequence[Placed], operations: Sequence[upstream.Operation]
) -> list[Placed]:
    """Adds the recomputed copies that no output needs, with the collectives of their originals."""
    live = {each.operation for each in placed}
    original: dict[str, Placed] = {}
    for each in placed:
        original.setdefault(each.operation.name, each)
    copies = [
        Placed(op, of.times, BACKWARD, True, of.collectives, of.part.replace("F", "B"), of.stage)
        for op in all_operations(operations)
        if op not in live and (of := original.get(op.name)) is not None and of.phase == FORWARD
    ]
    last = max((i for i, each in enumerate(placed) if each.is_recomputed), default=-1)
    return [*placed[: last + 1], *copies, *placed[last + 1 :]]


def _flat(
    operations: Sequence[upstream.Operation],
    needed: Iterable[upstream.Tensor],
    times: int,
    in_loop: bool = False,
) -> Iterator[Placed]:
    for op in live_operations(operations, needed):
        if isinstance(op, PipelineLoop):
            yield from _entries(op, times * op.count)
        elif isinstance(op, upstream.WhileLoopOperation) and not getattr(op, "repeats", False):
            count = op.count if isinstance(op, MicrobatchSums) else 1
            yield from _flat(op._body_ops, op._body_outputs, times * count, True)
        yield Placed(op, times, in_loop=in_loop)


def _entries(loop: PipelineLoop, times: int) -> Iterator[Placed]:
    """Lists the operations of a schedule's entries, in the order of their lowering."""
    partition = loop.partition
    numbers = range(len(partition.enters))
    pieces = [partition.pieces(chunk, max(partition.exits[chunk])) for chunk in numbers]

    def placed(
        operations: Iterable[upstream.Operation], part: str, stage: str = "", view: bool = False
    ) -> Iterator[Placed]:
        phase = FORWARD if part.startswith(Action.FORWARD.value) else BACKWARD
        for op in operations:
            yield Placed(op, times, phase, part=part, stage=stage, passes_on=view, in_loop=True)

    for chunk, piece in enumerate(pieces):
        part = f"{Action.FORWARD.value}{chunk}"
        if piece.before is not None:
            yield from placed(piece.before.operations, part, FIRST)
        yield from placed([partition.enters[chunk]], part)
        yield from placed(piece.forward.operations, part)
    for chunk, piece in enumerate(pieces):
        part = f"{Action.BACKWARD.value}{chunk}"
        if chunk == numbers[-1]:
            yield from placed([partition.last_exit], part, LAST, view=True)
            yield from placed(partition.after.operations, part, LAST)
        arrived = partition.exit_of(chunk).backward
        if arrived is not None:
            yield from placed([arrived], part)
        if piece.backward is not None:
            yield from placed(piece.backward.operations, part)
        if piece.before_backward is not None:
            yield from placed(piece.before_backward.operations, part, FIRST)
    for chunk, piece in enumerate(pieces):
        if piece.weights is not None:
            yield from placed(piece.weights.operations, f"{Action.WEIGHTS.value}{chunk}")


def _set_phases(placed: Sequence[Placed]) -> None:
    """Sets phases.

    The backward pass begins with the first gradient or recomputed copy, and ends with the last one.
    An operation that has the name of an earlier operation, and does not belong to a gradient, is a
    recomputed copy.
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
    # A loop over microbatches sums their gradients, so it belongs to the backward pass.
    loops = [i for i, p in enumerate(placed) if isinstance(p.operation, MicrobatchSums)]
    end = max(backward[-1], *loops) if loops else backward[-1]
    for each in placed[backward[0] : end + 1]:
        # The loss belongs to the forward pass, though a pipeline computes it in a backward entry.
        is_loss = each.stage == LAST and GRADIENTS not in each.operation.name
        is_forward = each.part.startswith(Action.FORWARD.value) or is_loss
        each.phase = FORWARD if is_forward else BACKWARD
    for each in placed[end + 1 :]:
        each.phase = UPDATE


def _place(collectives: Sequence[Collective], placed: Sequence[Placed]) -> None:
    """Assigns each collective to the operation that emitted it.

    Collectives and operations are in program order, except for gathers of weights, which are
    emitted earlier.
    """
    gathers: dict[str, list[Placed]] = {}
    places: dict[str, list[int]] = {}
    for i, each in enumerate(placed):
        places.setdefault(each.operation.name, []).append(i)
        if hooks(each.operation).gathered_variable is not None:
            gathers.setdefault(each.operation.name, []).append(each)
    # One gather may gather several weights. If one of them belongs to a layer, the gather is
    # assigned to this weight, because every stage has layers. A weight outside of layers may be
    # missing on a stage.
    names = [
        next(filter(layer_of, c.sums if c.operation in gathers else ()), c.operation)
        for c in collectives
    ]
    emitted, seen = Counter(names), Counter[str]()
    position = 0
    for name, collective in zip(names, collectives, strict=True):
        if name in gathers:
            # The operations with this name are an original and its recomputed copies, in program
            # order. All of them have the same number of gathers.
            i = seen[name] * len(gathers[name]) // emitted[name]
            gathers[name][i].collectives += (collective,)
            seen[name] += 1
        else:
            known = places.get(name, [position])
            i = known[min(bisect_left(known, position), len(known) - 1)]
            position = max(position, i)
            placed[i].collectives += (collective,)
