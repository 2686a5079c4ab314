"""From a program to what there is to say of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from t2tp import upstream as mtf
from t2tp.explanation.causes import GRADIENTS, Causes
from t2tp.explanation.contents import (
    Activation,
    Contents,
    CutTensor,
    Move,
    Phase,
    VariableLine,
)
from t2tp.explanation.page import page
from t2tp.explanation.text import text
from t2tp.mesh.layout import Layout
from t2tp.mesh.lowering import all_operations, live_operations
from t2tp.mesh.program import Program
from t2tp.whole_file import write_text

# What optimizers append to a variable's name to name what they keep for it.
_SLOT_SUFFIXES = ("/", "_slot_", "_momentum_")

# Operations that pass their input on.
_PASSING_ON = (
    mtf.Depend,
    mtf.StopGradient,
    mtf.CustomGradientOperation,
    mtf.PrintOperation,
    mtf.ScalarSummaryOperation,
)


class Explanation:
    """What a program is on its mesh; `print` it, or `save` it as a page with pictures.

    Attributes:
      contents: the same as data.
    """

    def __init__(self, contents: Contents) -> None:
        """Made by `explain`."""
        self.contents = contents

    def __str__(self) -> str:
        return text(self.contents)

    def html(self) -> str:
        """A page that needs no other file, and no JavaScript."""
        return page(self.contents)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page into a file, whole or not at all.

        Raises:
          OSError: it cannot be written there.
        """
        write_text(path, self.html())


def explain(program: Program) -> Explanation:
    """Says how a program's tensors are cut over its mesh, and which collectives that causes.

    The program is traced if that was not done; nothing runs.

    Args:
      program: a `t2tp.Program`, or a `t2tp.mesh.on_paper.ProgramOnPaper` of a mesh that is not
        there.
    """
    graph, outputs = program.graph()
    live = live_operations(graph.operations, outputs.values())
    phases = _phases(graph.operations)
    moves = _moves(program, graph, phases)
    return Explanation(
        Contents(
            program.layout,
            tuple(device for device in program.cluster.devices if device),
            tuple(program.layout.warnings(_shapes(graph))),
            tuple(_variables(graph, program.layout)),
            tuple(_activations(live, outputs, program.layout, phases, moves)),
            moves,
        )
    )


def _shapes(graph: mtf.Graph) -> list[mtf.Shape]:
    return [tensor.shape for op in all_operations(graph.operations) for tensor in op.outputs]


def _phases(operations: list[mtf.Operation]) -> dict[str, Phase]:
    """When each operation runs, by its name.

    Those in a loop run with the loop, unless it has the backward pass inside, as a loop over
    microbatches does: its operations then have phases of their own, what it gives is of the
    backward pass, and the update comes after it.
    """
    phases: dict[str, Phase] = {}
    otherwise = Phase.FORWARD
    for op in operations:
        phase = otherwise
        if GRADIENTS in op.name:
            phase, otherwise = Phase.BACKWARD, Phase.UPDATE
        inside = [inner for inner in all_operations([op]) if inner is not op]
        if isinstance(op, mtf.WhileLoopOperation) and any(GRADIENTS in x.name for x in inside):
            phases |= {**_phases(op._cond_ops), **_phases(op._body_ops), op.name: Phase.BACKWARD}
            otherwise = Phase.UPDATE
        else:
            phases |= {inner.name: phase for inner in (op, *inside)}
    return phases


def _moves(program: Program, graph: mtf.Graph, phases: Mapping[str, Phase]) -> tuple[Move, ...]:
    causes = Causes(list(all_operations(graph.operations)), program.layout)
    outside = {op.name for op in graph.operations} | {""}
    return tuple(
        Move(
            collective.kind,
            collective.axes,
            collective.group_size,
            collective.bytes,
            collective.operation,
            phases.get(collective.operation, Phase.FORWARD),
            collective.operation not in outside,
            collective.times,
            causes.shares(collective),
        )
        for collective in program.collective_log()
    )


def _variables(graph: mtf.Graph, layout: Layout) -> list[VariableLine]:
    """The variables, each with its slots; a slot's name begins with its variable's."""
    owners = [v for v in graph.all_variables if v.trainable]
    slots: dict[str, list[CutTensor]] = {v.name: [] for v in owners}
    listed = []
    for variable in graph.all_variables:
        tensor = CutTensor(variable.name, variable.shape, variable.slice_dtype, layout)
        owner = None if variable.trainable else _owner(variable.name, slots)
        if owner is None:
            listed.append((variable, tensor))
        else:
            slots[owner].append(tensor)
    return [
        VariableLine(
            tensor,
            variable.master_dtype,
            variable.activation_dtype,
            variable.trainable,
            tuple(slots.get(variable.name, ())),
        )
        for variable, tensor in listed
    ]


def _owner(name: str, variables: Iterable[str]) -> str | None:
    """The variable for which an optimizer keeps the one of this name."""
    owners = [v for v in variables if any(name.startswith(v + suffix) for suffix in _SLOT_SUFFIXES)]
    return max(owners, key=len, default=None)


def _activations(
    live: list[mtf.Operation],
    outputs: Mapping[str, mtf.Tensor],
    layout: Layout,
    phases: Mapping[str, Phase],
    moves: Iterable[Move],
) -> Iterable[Activation]:
    """The tensors that the step computes or is fed, and that something uses."""
    moving = {move.operation for move in moves}
    operations = list(all_operations(live))
    renaming = {op for op in operations if _renames(op, moving)}
    users = _users(operations, renaming)
    used = {*users, *outputs.values()}
    outside = set(live)
    for op in operations:
        if op in renaming or isinstance(op, mtf.Variable):
            continue
        for tensor in op.outputs:
            if tensor not in used:
                continue
            yield Activation(
                CutTensor(tensor.name.removesuffix(":0"), tensor.shape, tensor.dtype, layout),
                type(op).__name__.removesuffix("Operation"),
                phases[op.name],
                isinstance(op, mtf.ops.ImportLaidOutTensorOperation),
                phases[op.name] == Phase.FORWARD
                and any(phases[user.name] != Phase.FORWARD for user in users.get(tensor, ())),
                op not in outside,
            )


def _renames(op: mtf.Operation, moving: set[str]) -> bool:
    """Whether an operation's output is the memory of its input."""
    if isinstance(op, mtf.ReshapeOperation):
        return op.name not in moving
    return isinstance(op, _PASSING_ON)


def _users(
    operations: list[mtf.Operation], renaming: set[mtf.Operation]
) -> dict[mtf.Tensor, set[mtf.Operation]]:
    """The operations that read each tensor, under whatever name."""
    users: dict[mtf.Tensor, set[mtf.Operation]] = {}
    for op in reversed(operations):
        readers = {op}
        if op in renaming:
            readers = set().union(*(users.get(y, ()) for y in op.outputs))
        for x in op.inputs:
            users.setdefault(x, set()).update(readers)
    return users
