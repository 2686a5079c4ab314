"""An explanation as a page: one file of HTML, which needs no other and no JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

import tensorflow as tf

from t2tp.explanation import groups, phrases
from t2tp.explanation.alike import Alike
from t2tp.explanation.contents import Activation, Contents, CutTensor, VariableLine, totals
from t2tp.explanation.drawing import draw
from t2tp.explanation.page_style import STYLE
from t2tp.mesh.layout import Layout

# What hatches a tensor that every processor has whole.
_PATTERN = (
    '<svg width="0" height="0" aria-hidden="true"><defs><pattern id="everywhere" width="8"'
    ' height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0H8V8H0Z" fill="#dfe4ea"/><path d="M0 0H3V8H0Z" fill="#c3cad3"/>'
    "</pattern></defs></svg>"
)


def page(contents: Contents) -> str:
    """The whole page."""
    sections = {
        "mesh": ("The mesh", _mesh(contents)),
        "memory": ("Memory on each device", _memory(contents)),
        "variables": ("Variables", _variables(contents)),
        "features": ("Features", _features(contents)),
        "activations": ("Largest activations", _activations(contents)),
        "collectives": ("Collectives of a step", _moves(contents)),
    }
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in sections.items())
    body = "".join(
        f'<section id="{name}"><h2>{title}</h2>{"".join(parts)}</section>'
        for name, (title, parts) in sections.items()
    )
    title = escape(phrases.title(contents.layout))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>{_PATTERN}"
        f"<h1>{title}</h1><nav>{links}</nav>{body}"
        f'<footer class="faint"><p>{escape(phrases.ESTIMATE)}</p><p>{escape(phrases.PUT_IN)}</p>'
        "</footer></body></html>\n"
    )


def _mesh(contents: Contents) -> Iterator[str]:
    layout = contents.layout
    splits = contents.splits()
    axes = [
        f"axis <code>{escape(axis.name)}</code> of size {axis.size}"
        f" {escape(phrases.splitting(splits[axis.name]))}"
        for axis in layout.mesh_shape.dims
    ]
    said = [escape(phrases.processors(contents)), *axes]
    said += [escape(rule) for rule in phrases.idle_rules(layout)]
    said += [f'<span class="warning">Warning: {escape(w)}</span>' for w in contents.warnings]
    yield f'<div class="card"><div class="drawing">{draw(_mesh_as_tensor(layout))}</div>'
    yield f'<div class="facts"><ul>{"".join(f"<li>{each}</li>" for each in said)}</ul>'
    yield (
        '<p class="faint">Each part of a tensor has the colour, and the number, of the processors'
        " that hold it; sheets behind a drawing are copies, and what is hatched every processor"
        " has whole. Point at a part to read its range of indices.</p></div></div>"
    )


def _mesh_as_tensor(layout: Layout) -> CutTensor:
    """A tensor with an element for each processor."""
    rules = ";".join(f"{axis.name}:{axis.name}" for axis in layout.mesh_shape.dims)
    return CutTensor("mesh", layout.mesh_shape, tf.int32, Layout(layout.mesh_shape, rules))


def _memory(contents: Contents) -> Iterator[str]:
    rows = contents.memory()
    largest = max(max(line.on_device for line in rows), 1)
    yield '<table><tr><th>what</th><th class="number">on each device</th>'
    yield '<th class="number">all of it, once</th><th></th></tr>'
    for line in rows:
        percent = 100 * line.on_device / largest
        yield f'<tr><td>{line.what}</td><td class="number">{phrases.size(line.on_device)}</td>'
        yield f'<td class="number">{phrases.size(line.whole)}</td>'
        yield f'<td width="40%"><div class="bar" style="width:{percent:.1f}%"></div></td></tr>'
    yield "</table>"


def _variables(contents: Contents) -> Iterator[str]:
    def card(group: Alike[VariableLine]) -> str:
        line = group.first
        moves = phrases.moves_of_variable(contents.moves, line.tensor.name)
        said = [phrases.precision(line), phrases.slots(line), *moves]
        return _card(group.name + group.times, line.tensor, said)

    yield _cards(card(group) for group in groups.variables(contents))


def _features(contents: Contents) -> Iterator[str]:
    fed = groups.features(contents)
    yield _cards(_card(group.name + group.times, group.first.tensor, ()) for group in fed)


def _activations(contents: Contents) -> Iterator[str]:
    def card(group: Alike[Activation]) -> str:
        tensor = group.first.tensor
        moves = phrases.moves_of_tensor(contents.moves, tensor.name)
        return _card(group.name + group.times, tensor, [phrases.facts(group.first), *moves])

    computed = groups.activations(contents)
    if len(computed) > groups.LARGEST:
        yield f'<p class="faint">The {groups.LARGEST} largest of {len(computed)} kinds.</p>'
    yield _cards(card(group) for group in computed[: groups.LARGEST])


def _moves(contents: Contents) -> Iterator[str]:
    if not contents.moves:
        yield "<p>None: no processor needs what another one has.</p>"
        return
    sums = totals(contents.moves)
    yield '<div class="scroll"><table><tr><th>collective</th><th class="number">times</th>'
    yield '<th class="number">bytes put in by each processor</th><th>what for</th></tr>'
    for key, these in groups.moves(contents).items():
        count, num_bytes = sums[key]
        name = escape(f"{key[0]} over {' and '.join(key[1])}")
        yield _row(name, count, phrases.size(num_bytes), "in all", ' class="total"')
        for group in these:
            what = escape(phrases.purpose(group))
            yield _row("", len(group.members), phrases.size(group.first.bytes), what)
    yield "</table></div>"


def _row(name: str, count: int, num_bytes: str, what: str, kind: str = "") -> str:
    return (
        f'<tr{kind}><td>{name}</td><td class="number">{count}</td>'
        f'<td class="number">{num_bytes}</td><td>{what}</td></tr>'
    )


def _cards(cards: Iterable[str]) -> str:
    drawn = "".join(cards)
    return f'<div class="cards">{drawn}</div>' if drawn else "<p>None.</p>"


def _card(name: str, tensor: CutTensor, said: Iterable[str]) -> str:
    """A tensor: its drawing, and what there is to say of it."""
    listed = "".join(f"<li>{escape(each)}</li>" for each in said if each)
    shape, held = escape(tensor.describe()), escape(phrases.slice_of(tensor))
    return (
        f'<article class="card"><div class="drawing">{draw(tensor)}</div>'
        f'<div class="facts"><h3>{escape(name)}</h3><p class="shape">{shape}</p>'
        f'<p class="faint">{held}</p><ul>{listed}</ul></div></article>'
    )
