"""A layout report as text for a terminal."""

import textwrap
from collections.abc import Iterable, Iterator

from t2tp.layout_report import grouping, wording
from t2tp.layout_report.pipeline import LETTERS, chart
from t2tp.layout_report.report import ReportData
from t2tp.mesh.collective_log import summarize

_WIDTH = 100


def text(data: ReportData) -> str:
    """Formats the whole report."""
    sections = (
        _mesh,
        _pipeline,
        _memory,
        _variables,
        _features,
        _activations,
        _collectives,
        _remarks,
    )
    return "\n\n".join("\n".join(lines) for section in sections if (lines := [*section(data)]))


def _mesh(data: ReportData) -> Iterator[str]:
    layout = data.layout
    yield str(layout)
    yield f"  {wording.processors(data)}"
    splits = data.splits()
    for axis in layout.mesh_shape.dims:
        yield f"  mesh axis {axis.name} of size {axis.size} {wording.splitting(splits[axis.name])}"
    for fact in (*wording.storage(data), *wording.idle_rules(layout)):
        yield f"  {fact}"
    for warning in data.warnings:
        yield f"  Warning: {warning}"


def _pipeline(data: ReportData) -> Iterator[str]:
    if data.pipeline is not None:
        yield f"Pipeline ({LETTERS})"
        yield from (f"  {fact}" for fact in data.pipeline.facts())
        yield from (f"  {row}" for row in chart(data.pipeline.schedule, _WIDTH))


def _memory(data: ReportData) -> Iterator[str]:
    yield "Memory per device (full tensors in parentheses)"
    for line in data.memory():
        on_device, total = wording.size(line.on_device), wording.size(line.whole)
        yield f"  {on_device:>10} {f'({total})':>12}  {line.what}"
    yield f"  {wording.size(data.device_bytes()):>10}  {wording.fits(data.device_bytes())}"


def _variables(data: ReportData) -> Iterator[str]:
    if data.variables:
        yield "Variables (dimension=size/axis: split over that mesh axis)"
    yield from _cards(grouping.variables(data))


def _features(data: ReportData) -> Iterator[str]:
    fed = grouping.features(data)
    if fed:
        yield "Features"
    yield from _cards(fed)


def _activations(data: ReportData) -> Iterator[str]:
    computed = grouping.activations(data)
    if computed:
        num_shown = min(grouping.LARGEST, len(computed))
        yield f"Largest activations ({num_shown} of {len(computed)} kinds)"
    yield from _cards(computed[: grouping.LARGEST])


def _cards(cards: Iterable[grouping.Card]) -> Iterator[str]:
    for card in cards:
        yield f"  {card.name}  {card.tensor.describe()}"
        for fact in (wording.slice_of(card.tensor), *card.facts):
            yield f"      {fact}"


def _collectives(data: ReportData) -> Iterator[str]:
    yield "Collectives of a step"
    if not data.collectives:
        yield "  none"
    sums = summarize(data.collectives)
    for key, group_lines in grouping.collectives(data).items():
        count, total = sums[key]
        yield f"  {key[0]} over {' and '.join(key[1])}: {count}, {wording.size(total)}"
        for group in group_lines:
            num_bytes = f"{wording.size(group.first.bytes):>10}{group.times}"
            yield f"      {num_bytes}  {wording.purpose(group)}"


def _remarks(data: ReportData) -> Iterator[str]:
    yield textwrap.fill(wording.ESTIMATE, _WIDTH)
    if data.collectives:
        yield textwrap.fill(wording.PUT_IN, _WIDTH)
