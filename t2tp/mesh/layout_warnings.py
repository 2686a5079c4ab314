"""Warns of rules and axes of a layout that have no effect on a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from t2tp import upstream
from t2tp.mesh.axes import JOIN
from t2tp.mesh.dimensions import names_with
from t2tp.mesh.stages import LAYERS
from t2tp.mesh.storage import name_in_use
from t2tp.suggestions import nearest, similar

if TYPE_CHECKING:
    from t2tp.mesh.layout import Layout


def layout_warnings(layout: Layout, shapes: Iterable[upstream.Shape]) -> list[str]:
    """Returns warnings about rules and axes without effect on a model: probably typos.

    `shapes` are the shapes of all tensors of the model.
    """
    mesh_axes = layout.mesh_shape.dimension_names
    seen = {name_in_use(dim.name) for shape in shapes for dim in shape.dims}
    seen.add(LAYERS)  # Splits the model into stages; no tensor has this dimension.
    messages = []
    for dim, axes in layout.rules:
        idle = f"Layout rule '{dim}:{JOIN.join(axes)}' has no effect"
        known = [axis for axis in axes if axis in mesh_axes]
        if known and len(known) < len(axes):
            idle = f"Layout rule '{dim}:{JOIN.join(axes)}' splits over {JOIN.join(known)} only"
        for axis in axes:
            if axis in known:
                continue
            if dim in mesh_axes and axis in seen:
                messages.append(f"{idle}: it says axis:dimension; did you mean '{axis}:{dim}'?")
            elif similar(axis, mesh_axes):
                meant = nearest(axis, mesh_axes, "axes")
                messages.append(f"{idle}: the mesh has no axis {axis!r}; {meant}")
            elif dim not in seen:
                messages.append(
                    f"{idle}: there is neither an axis {axis!r} nor a dimension {dim!r}"
                )
        if len(known) == len(axes) and dim not in seen:
            meant = nearest(dim, seen, "dimensions")
            messages.append(f"{idle}: no tensor of the model has a dimension {dim!r}; {meant}")
    used = {axis.name for name in seen for axis in layout.axes_of(name)}
    for axis in layout.mesh_shape.dims:
        if axis.name not in used and axis.size > 1:
            messages.append(
                f"Mesh axis {axis.name!r} of size {axis.size} splits nothing: its processors"
                f" all do the same work{_could_split(layout, axis, seen)}"
            )
    return messages


def unnamed_dimensions(layout: Layout, shapes: Iterable[upstream.Shape]) -> list[str]:
    """Returns the dimensions that no rule names, and that follow no other dimension.

    Every processor has them whole, except at rest (`t2tp.mesh.storage`).
    """
    named = {dim for dim, _ in layout.rules}
    seen = dict.fromkeys(name_in_use(dim.name) for x in shapes for dim in x.dims if dim.size > 1)
    return [name for name in seen if name not in named and layout.axis_of(name) is None]


def _could_split(layout: Layout, axis: upstream.Dimension, seen: Collection[str]) -> str:
    """Suggests what an idle axis could split, as the end of a sentence."""
    for dim, others in layout.rules:
        if dim in seen and layout.axis_of(dim) is None:
            other = JOIN.join(others)
            return (
                f"; the mesh has no axis {other!r}, which the rule '{dim}:{other}' names: did"
                f" you mean '{dim}:{axis.name}'?"
            )
    free = {name for name in seen if layout.axis_of(name) is None}
    # Leaves out dimensions that operations create, unless there are no others to suggest.
    free = free & {*names_with(lambda dim: dim.is_common)} or free
    return f"; no rule splits {', '.join(sorted(free))}." if free else "."
