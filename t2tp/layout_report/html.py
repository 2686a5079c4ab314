"""A layout report as one self-contained HTML file."""

from collections.abc import Iterator, Sequence
from html import escape

import tensorflow as tf

from t2tp.layout_report import grouping, wording
from t2tp.layout_report.html_page import html_page, table
from t2tp.layout_report.pipeline import LETTERS, chart
from t2tp.layout_report.report import ReportData, SlicedTensor
from t2tp.layout_report.svg import render_svg
from t2tp.mesh.collective_log import summarize
from t2tp.mesh.layout import Layout

# Max number of columns of a pipeline's table.
_COLUMNS = 2000


def page(data: ReportData) -> str:
    """Renders the page."""
    sections = {
        "mesh": ("The mesh", _mesh(data)),
        "pipeline": ("The pipeline", _pipeline(data)),
        "memory": ("Memory per device", _memory(data)),
        "variables": ("Variables", _cards(grouping.variables(data))),
        "features": ("Features", _cards(grouping.features(data))),
        "activations": ("Largest activations", _activations(data)),
        "collectives": ("Collectives of a step", _collectives(data)),
    }
    if data.pipeline is None:
        del sections["pipeline"]
    footer = f"<p>{escape(wording.ESTIMATE)}</p><p>{escape(wording.PUT_IN)}</p>"
    return html_page(str(data.layout), sections, footer=footer)


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
        '<p class="faint">Each part of a tensor has the numbers of the processors that hold it, and'
        " the colour of the first. Every processor holds a grey tensor whole. Point at a part to"
        " read its range of indices.</p></div></div>"
    )


def _pipeline(data: ReportData) -> Iterator[str]:
    if data.pipeline is not None:
        facts = "".join(f"<li>{escape(fact)}</li>" for fact in data.pipeline.facts())
        rows = "\n".join(chart(data.pipeline.schedule, _COLUMNS))
        yield f'<ul>{facts}</ul><pre class="scroll">{rows}</pre><p class="faint">{LETTERS}</p>'


def _mesh_as_tensor(layout: Layout) -> SlicedTensor:
    """Returns a tensor with one element per processor, as a drawing of the mesh."""
    rules = ";".join(f"{axis.name}:{axis.name}" for axis in layout.mesh_shape.dims)
    return SlicedTensor("mesh", layout.mesh_shape, tf.int32, Layout(layout.mesh_shape, rules))


def _memory(data: ReportData) -> Iterator[str]:
    rows = data.memory()
    largest = max(max(line.on_device for line in rows), 1)
    yield table(
        ("what", "#per device", "#full tensors", ""),
        (
            (
                line.what,
                wording.size(line.on_device),
                wording.size(line.whole),
                f'<div class="bar" style="width:{16 * line.on_device / largest:.2f}rem"></div>',
            )
            for line in rows
        ),
    )


def _activations(data: ReportData) -> Iterator[str]:
    computed = grouping.activations(data)
    if len(computed) > grouping.LARGEST:
        yield f'<p class="faint">The {grouping.LARGEST} largest of {len(computed)} kinds.</p>'
    yield from _cards(computed[: grouping.LARGEST])


def _collectives(data: ReportData) -> Iterator[str]:
    if not data.collectives:
        yield "<p>None: no processor needs data of another.</p>"
        return
    sums = summarize(data.collectives)
    rows = []
    for key, group_lines in grouping.collectives(data).items():
        count, num_bytes = sums[key]
        name = escape(f"{key[0]} over {' and '.join(key[1])}")
        rows.append([f"<b>{each}</b>" for each in (name, count, wording.size(num_bytes), "in all")])
        for group in group_lines:
            members, first = str(len(group.members)), wording.size(group.first.bytes)
            rows.append(["", members, first, escape(wording.purpose(group))])
    yield table(("collective", "#times", "#input bytes per processor", "purpose"), rows)


def _cards(cards: Sequence[grouping.Card]) -> Iterator[str]:
    html = "".join(map(_card, cards))
    yield f'<div class="cards">{html}</div>' if html else "<p>None.</p>"


def _card(card: grouping.Card) -> str:
    """Renders a tensor: diagram, shape, slice and facts."""
    items = "".join(f"<li>{escape(fact)}</li>" for fact in card.facts)
    shape, slice_text = escape(card.tensor.describe()), escape(wording.slice_of(card.tensor))
    return (
        f'<article class="card"><div class="drawing">{render_svg(card.tensor)}</div>'
        f'<div class="facts"><h3>{escape(card.name)}</h3><p class="shape">{shape}</p>'
        f'<p class="faint">{slice_text}</p><ul>{items}</ul></div></article>'
    )
