"""A layout report as one self-contained HTML file without JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

import tensorflow as tf

from t2tp.layout_report import grouping, wording
from t2tp.layout_report.html_style import STYLE
from t2tp.layout_report.layer_groups import LayerGroup
from t2tp.layout_report.pipeline import chart_as_svg, legend
from t2tp.layout_report.report import Activation, ReportData, SlicedTensor, VariableLine, totals
from t2tp.layout_report.svg import render_svg
from t2tp.mesh.layout import Layout

# What hatches a tensor that every processor has whole.
_PATTERN = (
    '<svg width="0" height="0" aria-hidden="true"><defs><pattern id="everywhere" width="8"'
    ' height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0H8V8H0Z" fill="#dfe4ea"/><path d="M0 0H3V8H0Z" fill="#c3cad3"/>'
    "</pattern></defs></svg>"
)


def page(data: ReportData) -> str:
    """Renders the page."""
    sections = {
        "mesh": ("The mesh", _mesh(data)),
        "pipeline": ("The pipeline", _pipeline(data)),
        "memory": ("Memory per device", _memory(data)),
        "variables": ("Variables", _variables(data)),
        "features": ("Features", _features(data)),
        "activations": ("Largest activations", _activations(data)),
        "collectives": ("Collectives of a step", _collectives(data)),
    }
    if data.pipeline is None:
        del sections["pipeline"]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in sections.items())
    body = "".join(
        f'<section id="{name}"><h2>{title}</h2>{"".join(parts)}</section>'
        for name, (title, parts) in sections.items()
    )
    title = escape(str(data.layout))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>{_PATTERN}"
        f"<h1>{title}</h1><nav>{links}</nav>{body}"
        f'<footer class="faint"><p>{escape(wording.ESTIMATE)}</p><p>{escape(wording.PUT_IN)}</p>'
        "</footer></body></html>\n"
    )


def _mesh(data: ReportData) -> Iterator[str]:
    layout = data.layout
    splits = data.splits()
    axes = [
        f"axis <code>{escape(axis.name)}</code> of size {axis.size}"
        f" {escape(wording.splitting(splits[axis.name]))}"
        for axis in layout.mesh_shape.dims
    ]
    facts = [escape(wording.processors(data)), *axes]
    facts += [escape(fact) for fact in (*wording.storage(data), *wording.idle_rules(layout))]
    facts += [f'<span class="warning">Warning: {escape(w)}</span>' for w in data.warnings]
    yield f'<div class="card"><div class="drawing">{render_svg(_mesh_as_tensor(layout))}</div>'
    yield f'<div class="facts"><ul>{"".join(f"<li>{each}</li>" for each in facts)}</ul>'
    yield (
        '<p class="faint">Each part of a tensor has the colour, and the number, of the processors'
        " that hold it; sheets behind a drawing are copies, and what is hatched every processor"
        " has whole. Point at a part to read its range of indices.</p></div></div>"
    )


def _pipeline(data: ReportData) -> Iterator[str]:
    if data.pipeline is not None:
        facts = "".join(f"<li>{escape(fact)}</li>" for fact in data.pipeline.facts())
        yield f'<ul>{facts}</ul><div class="scroll">{chart_as_svg(data.pipeline.schedule)}</div>'
        yield f'<p class="faint">{legend()}</p>'


def _mesh_as_tensor(layout: Layout) -> SlicedTensor:
    """Returns a tensor with one element per processor, to draw the mesh itself."""
    rules = ";".join(f"{axis.name}:{axis.name}" for axis in layout.mesh_shape.dims)
    return SlicedTensor("mesh", layout.mesh_shape, tf.int32, Layout(layout.mesh_shape, rules))


def _memory(data: ReportData) -> Iterator[str]:
    rows = data.memory()
    largest = max(max(line.on_device for line in rows), 1)
    yield '<table><tr><th>what</th><th class="number">per device</th>'
    yield '<th class="number">full tensors</th><th></th></tr>'
    for line in rows:
        percent = 100 * line.on_device / largest
        yield f'<tr><td>{line.what}</td><td class="number">{wording.size(line.on_device)}</td>'
        yield f'<td class="number">{wording.size(line.whole)}</td>'
        yield f'<td width="40%"><div class="bar" style="width:{percent:.1f}%"></div></td></tr>'
    yield "</table>"


def _variables(data: ReportData) -> Iterator[str]:
    def card(group: LayerGroup[VariableLine]) -> str:
        line = group.first
        collectives = wording.collectives_of_variable(data, line.tensor.name)
        facts = [wording.precision(line), wording.slots(line), *collectives]
        return _card(group.name + group.times, line.tensor, facts)

    yield _cards(card(group) for group in grouping.variables(data))


def _features(data: ReportData) -> Iterator[str]:
    fed = grouping.features(data)
    yield _cards(_card(group.name + group.times, group.first.tensor, ()) for group in fed)


def _activations(data: ReportData) -> Iterator[str]:
    def card(group: LayerGroup[Activation]) -> str:
        tensor = group.first.tensor
        collectives = wording.collectives_of_tensor(data, tensor.name)
        return _card(group.name + group.times, tensor, [wording.facts(group.first), *collectives])

    computed = grouping.activations(data)
    if len(computed) > grouping.LARGEST:
        yield f'<p class="faint">The {grouping.LARGEST} largest of {len(computed)} kinds.</p>'
    yield _cards(card(group) for group in computed[: grouping.LARGEST])


def _collectives(data: ReportData) -> Iterator[str]:
    if not data.collectives:
        yield "<p>None: no processor needs data of another.</p>"
        return
    sums = totals(data.collectives)
    yield '<div class="scroll"><table><tr><th>collective</th><th class="number">times</th>'
    yield '<th class="number">input bytes per processor</th><th>purpose</th></tr>'
    for key, group_lines in grouping.collectives(data).items():
        count, num_bytes = sums[key]
        name = escape(f"{key[0]} over {' and '.join(key[1])}")
        yield _row(name, count, wording.size(num_bytes), "in all", ' class="total"')
        for group in group_lines:
            purpose = escape(wording.purpose(group))
            yield _row("", len(group.members), wording.size(group.first.bytes), purpose)
    yield "</table></div>"


def _row(name: str, count: int, num_bytes: str, what: str, kind: str = "") -> str:
    return (
        f'<tr{kind}><td>{name}</td><td class="number">{count}</td>'
        f'<td class="number">{num_bytes}</td><td>{what}</td></tr>'
    )


def _cards(cards: Iterable[str]) -> str:
    html = "".join(cards)
    return f'<div class="cards">{html}</div>' if html else "<p>None.</p>"


def _card(name: str, tensor: SlicedTensor, facts: Iterable[str]) -> str:
    """Renders a tensor: diagram, shape, slice and facts."""
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts if fact)
    shape, slice_text = escape(tensor.describe()), escape(wording.slice_of(tensor))
    return (
        f'<article class="card"><div class="drawing">{render_svg(tensor)}</div>'
        f'<div class="facts"><h3>{escape(name)}</h3><p class="shape">{shape}</p>'
        f'<p class="faint">{slice_text}</p><ul>{items}</ul></div></article>'
    )
