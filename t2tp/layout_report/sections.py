"""The sections of a layout report: one line or card per group of layers' tensors."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import tensorflow as tf

from t2tp.layout_report import report, wording
from t2tp.layout_report.svg import render_svg
from t2tp.mesh.collective_log import summarize
from t2tp.mesh.layer_names import LayerGroup, group_layers, without_layer_indices
from t2tp.mesh.layout import Layout
from t2tp.pipeline.schedule import Schedule
from t2tp.report.parts import WARNING, Card, Cards, Facts, Note, Part, Rows, Section, Table
from t2tp.report.units import size
from t2tp.step.attribution import CollectiveUse
from t2tp.step.memory import PURPOSES

# Number of groups of activations to show; the table of memory counts the hidden ones, too.
LARGEST = 20
# Max number of columns of a pipeline's chart.
_COLUMNS = 2000
_LETTERS = "F: forward pass, B: backward pass, W: gradients of weights, by microbatch"

_Line = TypeVar("_Line", bound=report.VariableLine | report.Activation)


def sections(data: report.ReportData) -> list[Section]:
    """Returns the sections of the report."""
    found = [Section("mesh", "The mesh", [*_mesh(data)])]
    if data.pipeline is not None:
        rows = Rows([*_chart(data.pipeline.schedule)])
        parts: list[Part] = [Facts(data.pipeline.facts), rows, Note(_LETTERS)]
        found.append(Section("pipeline", "The pipeline", parts))
    found.append(Section("memory", "Memory of a device at the peak", [*_memory(data)]))
    computed = _activations(data)
    cards = {
        ("variables", "Variables (dimension=size/axis: split over that mesh axis)"): _variables(
            data
        ),
        ("features", "Features"): _cards([a for a in data.activations if a.is_fed], lambda _: []),
        (
            "activations",
            f"Largest activations ({min(LARGEST, len(computed))} of {len(computed)} kinds)",
        ): computed[:LARGEST],
    }
    found += [Section(*names, [Cards(shown)]) for names, shown in cards.items() if shown]
    found.append(Section("collectives", "Collectives of a step", [*_collectives(data)]))
    return found


def _chart(schedule: Schedule) -> Iterator[str]:
    """Draws a schedule: a line per stage, of up to `_COLUMNS` letters, and a column per tick."""
    widest = max(len(str(entry)) for _, _, entry in schedule.entries()) + 1
    # The beginning shows the pattern. All ticks of thousands of microbatches would fill megabytes.
    shown = min(schedule.ticks, (_COLUMNS - 12) // widest)
    for stage in range(schedule.stages):
        cells = (schedule.table[tick][stage] for tick in range(shown))
        row = "".join(("." if cell is None else str(cell)).ljust(widest) for cell in cells)
        yield f"stage {stage:<3} {row}{'...' if shown < schedule.ticks else ''}".rstrip()


def _mesh(data: report.ReportData) -> Iterator[Part]:
    layout, splits = data.layout, data.splits()
    axes = [
        f"mesh axis {axis.name} of size {axis.size} splits"
        f" {', '.join(splits[axis.name]) or 'nothing'}"
        for axis in layout.mesh_shape.dims
    ]
    facts = [*axes, *wording.mesh_facts(data)]
    facts += [f"{WARNING}{warning}" for warning in data.warnings]
    yield Cards([Card("", wording.processors(data), facts, render_svg(_mesh_as_tensor(layout)))])


def _mesh_as_tensor(layout: Layout) -> report.SlicedTensor:
    """Returns a tensor with one element per processor, as a drawing of the mesh."""
    rules = ";".join(f"{axis.name}:{axis.name}" for axis in layout.mesh_shape.dims)
    return report.SlicedTensor(
        "mesh", layout.mesh_shape, tf.int32, Layout(layout.mesh_shape, rules)
    )


def _memory(data: report.ReportData) -> Iterator[Part]:
    # Purposes without bytes are left out: a single device has no communication buffers.
    held = {PURPOSES[purpose]: n for purpose, n in data.memory.items() if n}
    rows = [(what, size(num_bytes)) for what, num_bytes in held.items()]
    yield Table(("what", "#per device"), rows, [*held.values()])
    yield Facts([wording.fitting(data)])
    yield Note(wording.ESTIMATE)


def _variables(data: report.ReportData) -> list[Card]:
    def facts(line: report.VariableLine) -> list[str]:
        name = line.tensor.name
        uses = wording.collectives(data.uses_by_variable.get(name, ()), name)
        return [wording.precision(line), wording.slots(line), *uses]

    return _cards(data.variables, facts)


def _activations(data: report.ReportData) -> list[Card]:
    """Returns the computed activations, largest slice first."""

    def facts(activation: report.Activation) -> list[str]:
        uses = data.uses_by_tensor.get(activation.tensor.name, ())
        return [wording.facts(activation), *wording.collectives(uses)]

    # Users look for what to split next, and only the first groups are shown.
    computed = (a for a in data.activations if not a.is_fed)
    return _cards(sorted(computed, key=lambda a: -a.tensor.slice_bytes), facts)


def _cards(lines: Iterable[_Line], facts: Callable[[_Line], list[str]]) -> list[Card]:
    """Returns a card for each group of tensors with equal facts."""
    # Equal layers share a card. A layer that is split or read in another way has its own.
    groups: list[LayerGroup[_Line]] = group_layers(
        lines,
        lambda line: line.tensor.name,
        lambda line: (line.tensor.describe(), line.tensor.dtype, *facts(line)),
    )
    return [
        Card(
            group.name + group.times,
            group.first.tensor.describe(),
            [wording.slice_of(group.first.tensor), *filter(None, facts(group.first))],
            render_svg(group.first.tensor),
        )
        for group in groups
    ]


def _collectives(data: report.ReportData) -> Iterator[Part]:
    if not data.collectives:
        yield Facts(["none: no processor needs data of another"])
        return

    def key(collective: report.CollectiveLine) -> tuple:
        # The same collective of 48 layers is one row.
        uses = tuple(map(_without_layer, collective.uses))
        return collective.bytes, collective.phase, collective.in_loop, collective.times, uses

    rows = []
    for (kind, axes), (count, num_bytes) in summarize(data.collectives).items():
        rows.append((f"{kind} over {' and '.join(axes)}", str(count), size(num_bytes), "in all"))
        lines = [c for c in data.collectives if (c.kind, c.axes) == (kind, axes)]
        for group in group_layers(lines, lambda c: c.uses[0].tensor, key):
            members = str(len(group.members))
            rows.append(("", members, size(group.first.bytes), wording.purpose(group)))
    yield Table(("collective", "#times", "#input bytes", "purpose"), rows)
    yield Note(wording.PUT_IN)


def _without_layer(use: CollectiveUse) -> tuple:
    """Returns a key without layer indices."""
    of = without_layer_indices(use.gradient_of or "")
    return (without_layer_indices(use.tensor), use.bytes, use.over, of)
