"""Collects the data of a layout report from the analysis of a lowered program."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from t2tp import upstream
from t2tp.argument_types import checked
from t2tp.building.mesh import names_by_stage
from t2tp.layout_report import report
from t2tp.layout_report.sections import sections
from t2tp.lowering.lowering import all_operations
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_warnings import layout_warnings
from t2tp.program.program import Program
from t2tp.report.parts import Report
from t2tp.step.attribution import Attribution
from t2tp.step.kernels import Kernels, own_kernels
from t2tp.step.lifetimes import Liveness
from t2tp.step.lowered import ChunkBytes, LoweredStep, owner_of, pipeline_loop
from t2tp.step.memory import with_fragmentation
from t2tp.step.order import FIRST, LAST, MIDDLE, Placed, is_weight, of_stage, program_order
from t2tp.step.work import UPDATE


@dataclass(frozen=True)
class LayoutReport(Report):
    """The layout of a program: `print` it, or `save` it as an HTML page with diagrams."""

    data: report.ReportData


@checked
def explain(program: Program, kernels: Kernels | None = None) -> LayoutReport:
    """Reports how a program's tensors are sliced over its mesh, and the collectives it needs.

    Traces the program if it has not been traced. Runs nothing. An `AbstractProgram` needs no
    devices. `kernels` determine the planned memory. The default are t2tp's kernels on the program's
    devices, or on GPUs if the program is abstract.
    """
    # Only tracing emits collectives, for example those of deferred sums.
    log = program.collective_log()
    graph, outputs = program.graph()
    layout, needed = program.layout, list(outputs.values())
    devices = tuple(device for device in program.cluster.devices if device)
    if kernels is None:
        kernels = own_kernels(layout.size, on_cpu=bool(devices) and program.cluster.on_cpu)
    placed = program_order(graph.operations, needed, log)
    lifetimes = Liveness(placed, needed, layout, kernels)
    loop = pipeline_loop(graph.operations)
    points = [LoweredStep.from_lifetimes(lifetimes, graph, needed).memory_by_point()]
    if loop is not None:
        sizes = ChunkBytes.of_loop(loop, layout)
        # The stage before the loss also saves the result of its last layer.
        last = (*sizes.kept[:-1], sizes.kept[-1] + sizes.results[-1])
        by_stage = [*[sizes.kept] * (loop.schedule.stages - 1), last]
        saved = loop.schedule.max_kept(by_stage)
        points = []
        # In 1F1B, the first of the middle stages saves the most. A schedule of a file may differ.
        for stage, place in ((0, FIRST), (1, MIDDLE), (-1, LAST)):
            own = Liveness(of_stage(placed, place), needed, layout, kernels)
            of_place = LoweredStep.from_lifetimes(own, graph, needed).memory_by_point()
            for point, memory in of_place.items():
                # The activations that the stage saves for other microbatches.
                memory["kept"] += (point != UPDATE) * max(0.0, saved[stage] - sum(by_stage[stage]))
            points.append(of_place)
    # All devices are equal, so the fullest stage decides whether they are large enough.
    peaks = [with_fragmentation(m, kernels) for each in points for m in each.values()]
    shapes = [tensor.shape for op in all_operations(graph.operations) for tensor in op.outputs]
    data = report.ReportData(
        layout,
        devices,
        tuple(layout_warnings(layout, shapes)),
        tuple(_variables(graph, layout)),
        tuple(_activations(lifetimes)),
        tuple(_collectives(placed, graph, layout)),
        max(peaks, key=lambda memory: sum(memory.values())),
        None if loop is None else report.PipelineLine.of_loop(loop, layout),
    )
    return LayoutReport(str(layout), sections(data), data)


def _collectives(
    placed: Iterable[Placed], graph: upstream.Graph, layout: Layout
) -> Iterable[report.CollectiveLine]:
    causes = Attribution(list(all_operations(graph.operations)), layout)
    for each in placed:
        for c in each.collectives:
            facts = {f.name: getattr(c, f.name) for f in dataclasses.fields(c)}
            yield report.CollectiveLine(
                **facts, phase=each.phase, in_loop=each.in_loop, uses=causes.uses(c)
            )


def _variables(graph: upstream.Graph, layout: Layout) -> list[report.VariableLine]:
    """Lists the variables with their slots."""
    slots: dict[str, list[report.SlicedTensor]] = {v.name: [] for v in graph.trainable_variables}
    tensors: dict[upstream.Variable, report.SlicedTensor] = {}
    for variable in graph.all_variables:
        name = variable.name
        stages = _number_of_stages(variable.mesh, name)
        tensor = report.SlicedTensor(name, variable.shape, variable.slice_dtype, layout, stages)
        owner = None if variable.trainable else owner_of(name, slots)
        # A running average of a norm belongs to no trained variable, and has a line of its own.
        if owner is None:
            tensors[variable] = tensor
        else:
            slots[owner].append(tensor)
    return [
        report.VariableLine(tensor, v.activation_dtype, v.trainable, tuple(slots.get(v.name, ())))
        for v, tensor in tensors.items()
    ]


def _number_of_stages(mesh: upstream.Mesh, name: str) -> int:
    """Returns the number of stages if each has its own tensor of this name, else 1."""
    return len(names_by_stage(mesh, name) or [name])


def _activations(lifetimes: Liveness) -> Iterable[report.Activation]:
    """Lists the features and computed tensors that the step uses."""
    for buffer in lifetimes.buffers:
        each = lifetimes.placed[buffer.first_def]
        is_used = buffer.is_workspace or buffer.last_use > buffer.first_def
        if buffer.shape is None or buffer.dtype is None or not is_used or not buffer.num_bytes:
            continue
        if is_weight(each.operation):  # It is in the section of variables.
            continue
        layout, stages = lifetimes.layout, _number_of_stages(each.operation.mesh, buffer.name)
        yield report.Activation(
            report.SlicedTensor(buffer.name, buffer.shape, buffer.dtype, layout, stages),
            type(each.operation).__name__.removesuffix("Operation"),
            each.phase,
            buffer.purpose == "features",
            buffer.purpose == "kept",
            each.in_loop,
        )
