"""An explanation as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from t2tp.explanation import groups, phrases
from t2tp.explanation.alike import Alike
from t2tp.explanation.contents import Contents, VariableLine, totals

_WIDTH = 100


def text(contents: Contents) -> str:
    """All that there is to say."""
    sections = (_mesh, _memory, _variables, _features, _activations, _moves, _remarks)
    return "\n\n".join("\n".join(lines) for section in sections if (lines := [*section(contents)]))


def _mesh(contents: Contents) -> Iterator[str]:
    layout = contents.layout
    yield phrases.title(layout)
    yield f"  {phrases.processors(contents)}"
    splits = contents.splits()
    for axis in layout.mesh_shape.dims:
        yield f"  mesh axis {axis.name} of size {axis.size} {phrases.splitting(splits[axis.name])}"
    for rule in phrases.idle_rules(layout):
        yield f"  {rule}"
    for warning in contents.warnings:
        yield f"  Warning: {warning}"


def _memory(contents: Contents) -> Iterator[str]:
    yield "Memory on each device (and of the whole tensors, each once)"
    for line in contents.memory():
        on_device, whole = phrases.size(line.on_device), phrases.size(line.whole)
        yield f"  {on_device:>10} {f'({whole})':>12}  {line.what}"
    yield f"  {phrases.size(contents.device_bytes()):>10}  {phrases.fits(contents.device_bytes())}"


def _variables(contents: Contents) -> Iterator[str]:
    if contents.variables:
        yield "Variables (dimension=size/axis: cut over that mesh axis)"
    for group in groups.variables(contents):
        yield from _variable(contents, group)


def _variable(contents: Contents, group: Alike[VariableLine]) -> Iterator[str]:
    line = group.first
    yield f"  {group.name}{group.times}  {line.tensor.describe()}"
    yield f"      {phrases.slice_of(line.tensor)}"
    for said in (phrases.precision(line), phrases.slots(line)):
        if said:
            yield f"      {said}"
    for said in phrases.moves_of_variable(contents.moves, line.tensor.name):
        yield f"      {said}"


def _features(contents: Contents) -> Iterator[str]:
    fed = groups.features(contents)
    if fed:
        yield "Features"
    for group in fed:
        tensor = group.first.tensor
        yield f"  {group.name}{group.times}  {tensor.describe()}"
        yield f"      {phrases.slice_of(tensor)}"


def _activations(contents: Contents) -> Iterator[str]:
    computed = groups.activations(contents)
    if computed:
        yield f"Largest activations ({min(groups.LARGEST, len(computed))} of {len(computed)} kinds)"
    for group in computed[: groups.LARGEST]:
        tensor = group.first.tensor
        yield f"  {group.name}{group.times}  {tensor.describe()}"
        yield f"      {phrases.slice_of(tensor)}; {phrases.facts(group.first)}"
        for said in phrases.moves_of_tensor(contents.moves, tensor.name):
            yield f"      {said}"


def _moves(contents: Contents) -> Iterator[str]:
    yield "Collectives of a step"
    if not contents.moves:
        yield "  none"
    sums = totals(contents.moves)
    for key, these in groups.moves(contents).items():
        count, total = sums[key]
        yield f"  {key[0]} over {' and '.join(key[1])}: {count}, {phrases.size(total)}"
        for group in these:
            num_bytes = f"{phrases.size(group.first.bytes):>10}{group.times}"
            yield f"      {num_bytes}  {phrases.purpose(group)}"


def _remarks(contents: Contents) -> Iterator[str]:
    yield textwrap.fill(phrases.ESTIMATE, _WIDTH)
    if contents.moves:
        yield textwrap.fill(phrases.PUT_IN, _WIDTH)
