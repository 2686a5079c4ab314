"""Chains of element-wise operations, which a compiler makes one kernel of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from t2tp import upstream
from t2tp.mesh.layout import Layout
from t2tp.planner.sequence import Placed
from t2tp.planner.slices import FUSED, slice_bytes, work_of
from t2tp.planner.work import Work


def works(
    placed: Sequence[Placed],
    outputs: Iterable[upstream.Tensor],
    layout: Layout,
    *,
    fuses: bool,
) -> list[Work]:
    """Returns the work of the operations of a step.

    Args:
      placed: in program order.
      outputs: of the program.
      layout: mesh and rules.
      fuses: whether chains of element-wise operations move only inputs and outputs of the chain.
    """
    computed = [each for each in placed if not each.is_view]
    each_work = [(each, work_of(each, layout)) for each in computed]
    if not fuses:
        return [work for _, work in each_work if work.kind != "free"]
    fusable = {each.operation: (each, work) for each, work in each_work if work.kind in FUSED}
    chains = _chains(placed, fusable)
    made = [
        work for each, work in each_work if work.kind != "free" and each.operation not in fusable
    ]
    users = _users(placed)
    needed = set(outputs)
    for chain in chains:
        members = set(chain)
        read = {x for op in chain for x in op.inputs if _source(x).operation not in members}
        written = {
            y
            for op in chain
            for y in op.outputs
            if y in needed or any(user not in members for user in users.get(y, ()))
        }
        first = fusable[chain[0]][1]
        moved = sum(slice_bytes(x, layout) for x in (*read, *written))
        made.append(replace(first, num_bytes=float(moved), operations=len(chain)))
    return made


def _source(tensor: upstream.Tensor) -> upstream.Tensor:
    """Returns the tensor that this one is a view of."""
    while isinstance(tensor.operation, _VIEWS) and tensor.operation.inputs:
        tensor = tensor.operation.inputs[0]
    return tensor


_VIEWS = (upstream.Depend, upstream.StopGradient)


def _users(placed: Sequence[Placed]) -> dict[upstream.Tensor, set[upstream.Operation]]:
    users: dict[upstream.Tensor, set[upstream.Operation]] = {}
    for each in placed:
        for x in each.operation.inputs:
            users.setdefault(_source(x), set()).add(each.operation)
    return users


def _chains(
    placed: Sequence[Placed], fusable: dict[upstream.Operation, tuple[Placed, Work]]
) -> list[list[upstream.Operation]]:
    """Joins element-wise operations of one phase that read each other's results.

    A result that much later operations read (those of the backward pass) joins nothing: a kernel
    does not wait.
    """
    chain_of: dict[upstream.Operation, list[upstream.Operation]] = {}
    chains: list[list[upstream.Operation]] = []
    for each in placed:
        op = each.operation
        if op not in fusable:
            continue
        joined = None
        for x in op.inputs:
            before = _source(x).operation
            if before in chain_of and _fits(fusable[before], fusable[op]) and not each.collectives:
                joined = chain_of[before]
                break
        if joined is None:
            joined = []
            chains.append(joined)
        joined.append(op)
        chain_of[op] = joined
    return chains


def _fits(before: tuple[Placed, Work], after: tuple[Placed, Work]) -> bool:
    (one, _), (other, _) = before, after
    return (one.phase, one.times, one.is_recomputed) == (
        other.phase,
        other.times,
        other.is_recomputed,
    )
