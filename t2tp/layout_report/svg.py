"""Diagrams of sliced tensors, in SVG.

A tensor is drawn as boxes with two sides: its last two split dimensions. Each slice along other
split dimensions has its own box. Unsplit dimensions are left out, unless fewer than two dimensions
are split: then the unsplit dimensions form the other side, or both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from t2tp.layout_report import wording
from t2tp.layout_report.report import SlicedTensor
from t2tp.mesh.layout import Layout
from t2tp.mesh.storage import name_in_use

# Lengths in pixels. A side with at most `_FEW` parts is long enough for the processor numbers in
# them. A side with more parts has a limited length, but its parts stay distinguishable.
_SHORTEST, _LONGEST = 48.0, 190.0
_FEW, _ROOMY = 6, 36.0
_NARROW, _LONGEST_CUT, _VISIBLE = 15.0, 480.0, 3.0
_GAP, _LABEL, _LETTER = 14.0, 18.0, 6.4
# Color of a tensor that is not split.
_GREY = "#c3cad3"


@dataclass(frozen=True)
class _Side:
    """A side of a box: dimensions, number of slices along it, label, and length in pixels."""

    dims: tuple[int, ...]
    parts: int
    label: str
    length: float


def render_svg(tensor: SlicedTensor) -> str:
    """Renders a tensor as an `<svg>` element; hovering over a slice shows its processors."""
    rows, columns, stacked = _sides(tensor)
    boxes: dict[str, list[str]] = {}
    for part, pnums in tensor.holders().items():
        caption = ", ".join(_indices(tensor, dim, part[dim]) for dim in stacked)
        boxes.setdefault(caption, []).append(_cell(tensor, rows, columns, part, pnums))
    left = _LABEL if rows.label else 2.0
    step = columns.length + _GAP
    shapes = [
        f'<g transform="translate({left + number * step:.1f} {_LABEL:.1f})">{"".join(cells)}'
        f"{_text(0, rows.length + 14, caption, 'label')}</g>"
        for number, (caption, cells) in enumerate(boxes.items())
    ]
    width = max(left + len(boxes) * step, left + _LETTER * len(columns.label))
    height = _LABEL + rows.length + (_LABEL if stacked else 0.0) + 2
    words = tensor.describe()  # What a screen reader reads in place of the boxes.
    if tensor.layout.size > 1:
        words += f"; each part is on {tensor.copies} of {tensor.layout.size}"
    labels = _text(left, _LABEL - 6, columns.label, "label") + _upright(rows)
    return (
        f'<svg role="img" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" aria-label="{escape(words)}">'
        f"{labels}{''.join(shapes)}</svg>"
    )


def colour(layout: Layout, pnum: int) -> str:
    """Returns a processor's colour. Dark text is readable on it.

    The coordinate on the mesh's first axis gives the lightness, the other coordinates the hue.
    """
    sizes = [axis.size for axis in layout.mesh_shape.dims if axis.size > 1]
    # On data:2;model:4, processors that differ only on the first axis hold the same weights.
    hues = math.prod(sizes[1:] if len(sizes) > 1 else sizes)
    shades = layout.size // hues
    # Less than the full circle, or the last hue would look like the first.
    hue = 210 + 300 * (pnum % hues) / hues
    lightness = 84 - 22 * (pnum // hues) / max(shades - 1, 1)
    return f"hsl({hue % 360:.0f} 62% {lightness:.0f}%)"


def _sides(tensor: SlicedTensor) -> tuple[_Side, _Side, tuple[int, ...]]:
    """Returns the two sides of a box, and the dimensions whose slices have separate boxes."""
    dims = range(len(tensor.axes))
    split = [dim for dim in dims if tensor.axes[dim]]
    whole = [dim for dim in dims if not tensor.axes[dim]]
    if len(split) >= 2:
        return _side(tensor, split[-2:-1]), _side(tensor, split[-1:]), tuple(split[:-2])
    if not split:
        return _side(tensor, whole[:-1]), _side(tensor, whole[-1:]), ()
    sides = [_side(tensor, split), _side(tensor, whole)]
    # Rows come before columns, as in the tensor's shape.
    if whole and whole[0] < split[0]:
        sides.reverse()
    return sides[0], sides[1], ()


def _side(tensor: SlicedTensor, dims: Sequence[int]) -> _Side:
    size = math.prod(tensor.shape.dims[dim].size for dim in dims)
    parts = math.prod(_parts(tensor, dim) for dim in dims)
    label = " \N{MULTIPLICATION SIGN} ".join(_dimension(tensor, dim) for dim in dims)
    # On a linear scale, nearly every side would be `_SHORTEST` or `_LONGEST`.
    length = min(max(_SHORTEST, 18 * math.log2(size + 1)), _LONGEST)
    min_length = parts * _ROOMY
    if parts > _FEW:
        min_length = max(min(parts * _NARROW, _LONGEST_CUT), parts * _VISIBLE)
    return _Side(tuple(dims), parts, label, max(length, min_length, _LETTER * len(label)))


def _dimension(tensor: SlicedTensor, dim: int) -> str:
    """Formats a dimension and the axis that splits it: `heads=8/model`.

    The axis is left out if it has the dimension's name: `model=2`.
    """
    name, axis = name_in_use(tensor.shape.dims[dim].name), tensor.axes[dim]
    split = f"/{axis}" if axis not in (None, name) else ""
    return f"{name}={tensor.shape.dims[dim].size}{split}"


def _parts(tensor: SlicedTensor, dim: int) -> int:
    return tensor.shape.dims[dim].size // tensor.slice_shape[dim]


def _indices(tensor: SlicedTensor, dim: int, part: range) -> str:
    """Formats the index range of a slice: `batch 0 to 3`."""
    name = name_in_use(tensor.shape.dims[dim].name)
    return f"{name} {part.start}" + (f" to {part[-1]}" if len(part) > 1 else "")


def _cell(
    tensor: SlicedTensor, rows: _Side, columns: _Side, part: tuple[range, ...], pnums: Sequence[int]
) -> str:
    """Renders one slice at its position in the box."""
    # At most one dimension of a side is split, so the sum is the index of its slice.
    row, column = (
        sum(part[dim].start // tensor.slice_shape[dim] for dim in side.dims)
        for side in (rows, columns)
    )
    height, width = rows.length / rows.parts, columns.length / columns.parts
    x, y = column * width, row * height
    ranges = ", ".join(_indices(tensor, dim, each) for dim, each in enumerate(part))
    owners = wording.pnums(pnums)
    is_everywhere = tensor.layout.size > 1 and len(pnums) == tensor.layout.size
    # A slice that all processors hold belongs to none of them.
    fill = _GREY if is_everywhere else colour(tensor.layout, pnums[0])
    label = ""
    words = (
        ["all"] if is_everywhere else [owners, f"{owners.split(',')[0]},\N{HORIZONTAL ELLIPSIS}"]
    )
    # A label without room is left out: the slice's title names the processors.
    fitting = [word for word in words if len(word) * _LETTER <= width - 2]
    if fitting and height >= 13:
        label = _text(x + width / 2, y + height / 2 + 4, fitting[0], "holder")
    title = f"processor{'s' if len(pnums) > 1 else ''} {owners}: {ranges or 'a number'}"
    return (
        f'<g><title>{escape(title)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
        f' height="{height:.1f}" fill="{fill}"/>{label}</g>'
    )


def _upright(rows: _Side) -> str:
    if not rows.label:
        return ""
    return (
        f'<text class="label" transform="translate(12 {_LABEL + rows.length:.1f}) rotate(-90)">'
        f"{escape(rows.label)}</text>"
    )


def _text(x: float, y: float, words: str, kind: str) -> str:
    return words and f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
