"""Collects the data of a layout report from a lowered program."""

import os
import re
from collections.abc import Container, Iterable, Mapping

from t2tp import upstream
from t2tp.atomic_file import write_text
from t2tp.layout_report.html import page
from t2tp.layout_report.pipeline import pipeline_of
from t2tp.layout_report.report import (
    Activation,
    CollectiveLine,
    Phase,
    ReportData,
    SlicedTensor,
    VariableLine,
)
from t2tp.layout_report.text import text
from t2tp.lowering.lowering import all_operations, live_operations
from t2tp.lowering.operation import hooks
from t2tp.mesh.layer_names import GRADIENTS
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_warnings import layout_warnings
from t2tp.program.program import Program
from t2tp.step.attribution import Attribution

# A slot's name consists of its variable's name, one of these suffixes, and the kind of slot.
_SLOT_SUFFIXES = ("/", "_slot_", "_momentum_")


class LayoutReport:
    """The layout of a program: `print` it, or `save` it as an HTML page with diagrams."""

    def __init__(self, data: ReportData) -> None:
        self.data = data

    def __str__(self) -> str:
        return text(self.data)

    def html(self) -> str:
        """Returns the report as a self-contained HTML page."""
        return page(self.data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the HTML page atomically.

        Raises:
          OSError: the file cannot be written.
        """
        write_text(path, self.html())


def explain(program: Program) -> LayoutReport:
    """Reports how a program's tensors are sliced over its mesh, and the collectives it needs.

    Traces the program if it has not been traced. Runs nothing. An `AbstractProgram` needs no
    devices.
    """
    graph, outputs = program.graph()
    live = live_operations(graph.operations, outputs.values())
    phases = _phases(graph.operations)
    collectives = _collectives(program, graph, phases)
    return LayoutReport(
        ReportData(
            program.layout,
            tuple(device for device in program.cluster.devices if device),
            tuple(layout_warnings(program.layout, _shapes(graph))),
            tuple(_variables(graph, program.layout)),
            tuple(_activations(live, outputs, program.layout, phases, collectives)),
            collectives,
            tuple(_gathered(graph, program.layout)),
            pipeline_of(graph, program.layout),
        )
    )


def _shapes(graph: upstream.Graph) -> list[upstream.Shape]:
    return [tensor.shape for op in all_operations(graph.operations) for tensor in op.outputs]


def _phases(operations: list[upstream.Operation]) -> dict[str, Phase]:
    """Returns the phase of each operation by name.

    Operations in a loop have the loop's phase, unless the loop contains a backward pass, as a loop
    over microbatches does. Each operation in such a loop has its own phase, the loop's results
    belong to the backward pass, and the operations after the loop to the update.
    """
    phases: dict[str, Phase] = {}
    otherwise = Phase.FORWARD
    for op in operations:
        phase = otherwise
        if GRADIENTS in op.name:
            phase, otherwise = Phase.BACKWARD, Phase.UPDATE
        inside = [inner for inner in all_operations([op]) if inner is not op]
        if isinstance(op, upstream.WhileLoopOperation) and any(GRADIENTS in x.name for x in inside):
            phases |= {**_phases(op._cond_ops), **_phases(op._body_ops), op.name: Phase.BACKWARD}
            otherwise = Phase.UPDATE
        else:
            phases |= {inner.name: phase for inner in (op, *inside)}
    return phases


def _collectives(
    program: Program, graph: upstream.Graph, phases: Mapping[str, Phase]
) -> tuple[CollectiveLine, ...]:
    causes = Attribution(list(all_operations(graph.operations)), program.layout)
    outside = {op.name for op in graph.operations} | {""}
    return tuple(
        CollectiveLine(
            collective.kind,
            collective.axes,
            collective.group_size,
            collective.bytes,
            collective.name,
            collective.operation,
            collective.sums,
            collective.times,
            phases.get(collective.operation, Phase.FORWARD),
            collective.operation not in outside,
            causes.uses(collective),
        )
        for collective in program.collective_log()
    )


def _variables(graph: upstream.Graph, layout: Layout) -> list[VariableLine]:
    """Lists the variables with their slots, which are recognized by their names."""
    owners = [v for v in graph.all_variables if v.trainable]
    slots: dict[str, list[SlicedTensor]] = {v.name: [] for v in owners}
    lines = []
    for variable in graph.all_variables:
        tensor = SlicedTensor(variable.name, variable.shape, variable.slice_dtype, layout)
        owner = None if variable.trainable else _owner(variable.name, slots)
        if owner is None:
            lines.append((variable, tensor))
        else:
            slots[owner].append(tensor)
    return [
        VariableLine(
            tensor,
            variable.activation_dtype,
            variable.trainable,
            tuple(slots.get(variable.name, ())),
        )
        for variable, tensor in lines
    ]


def _gathered(graph: upstream.Graph, layout: Layout) -> Iterable[SlicedTensor]:
    """Lists the weights that a step gathers once, with the shape and dtype after the gather."""
    for variable in graph.all_variables:
        value = variable.value
        if value.shape != variable.shape:
            yield SlicedTensor(variable.name, value.shape, value.dtype, layout)


def _owner(name: str, variables: Container[str]) -> str | None:
    """Returns the variable of the slot `name`; None if it is not a slot."""
    ends = (
        match.start() for suffix in _SLOT_SUFFIXES for match in re.finditer(f"(?={suffix})", name)
    )
    return max((name[:end] for end in ends if name[:end] in variables), key=len, default=None)


def _activations(
    live: list[upstream.Operation],
    outputs: Mapping[str, upstream.Tensor],
    layout: Layout,
    phases: Mapping[str, Phase],
    collectives: Iterable[CollectiveLine],
) -> Iterable[Activation]:
    """Lists the features and computed tensors that the step uses."""
    with_collective = {collective.operation for collective in collectives}
    operations = list(all_operations(live))
    views = {op for op in operations if _is_view(op, with_collective)}
    users = _users(operations, views)
    used = {*users, *outputs.values()}
    outside = set(live)
    for op in operations:
        if op in views or isinstance(op, upstream.Variable):
            continue
        for shape, dtype in hooks(op).temporaries(layout):
            sliced = SlicedTensor(f"{op.name} (temporary)", shape, dtype, layout)
            kind = type(op).__name__.removesuffix("Operation")
            yield Activation(sliced, kind, phases[op.name], False, False, op not in outside)
        for tensor in op.outputs:
            if tensor not in used:
                continue
            yield Activation(
                SlicedTensor(tensor.name.removesuffix(":0"), tensor.shape, tensor.dtype, layout),
                type(op).__name__.removesuffix("Operation"),
                phases[op.name],
                isinstance(op, upstream.ops.ImportLaidOutTensorOperation),
                phases[op.name] == Phase.FORWARD
                and any(phases[user.name] != Phase.FORWARD for user in users.get(tensor, ())),
                op not in outside,
            )


def _is_view(op: upstream.Operation, with_collective: set[str]) -> bool:
    """Whether an operation's output shares its input's memory."""
    if isinstance(op, upstream.ReshapeOperation):
        return op.name not in with_collective
    return hooks(op).cost_kind == "view"


def _users(
    operations: list[upstream.Operation], views: set[upstream.Operation]
) -> dict[upstream.Tensor, set[upstream.Operation]]:
    """Returns the operations that read each tensor, directly or through views."""
    users: dict[upstream.Tensor, set[upstream.Operation]] = {}
    for op in reversed(operations):
        readers = {op}
        if op in views:
            readers = set().union(*(users.get(y, ()) for y in op.outputs))
        for x in op.inputs:
            users.setdefault(x, set()).update(readers)
    return users
