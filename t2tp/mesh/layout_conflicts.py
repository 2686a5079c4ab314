"""Rejects tensors and operations that the rules of a layout cannot split, and suggests rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from t2tp import upstream
from t2tp.mesh.axes import JOIN
from t2tp.mesh.dimensions import declared
from t2tp.mesh.layout_text import LayoutError, describe
from t2tp.mesh.storage import VECTOR, name_in_use

# Dimensions whose size an hparam of another name sets.
_HPARAMS = {"batch": "batch_size", "heads": "num_heads", "kv_heads": "num_kv_heads"}
_HPARAMS |= {"length": "max_length", "experts": "num_experts"}

if TYPE_CHECKING:
    from t2tp.mesh.layout import Layout


def check_tensor(layout: Layout, name: str, shape: upstream.Shape) -> None:
    """Rejects a tensor that the rules cannot lay out; `name` is its name in the error.

    Raises:
      LayoutError: two of its dimensions are split over one axis, or an axis does not divide its
        dimension.
    """
    check_dimensions(layout, f"Tensor {name!r} {describe(shape)}", shape)


def check_dimensions(layout: Layout, what: str, dims: Iterable[upstream.Dimension]) -> None:
    """Rejects dimensions of one tensor or operation that cannot be split together.

    `what` names the tensor or operation, as the subject of the error's sentence.
    """
    dims = list(dims)
    if layout.exact_sums:
        _check_exact(layout, what, dims)
    split_by: dict[str, upstream.Dimension] = {}
    for dim in dims:
        axis = layout.axis_of(dim.name)
        if axis is None:
            continue
        for part in layout.axes_of(dim.name):
            first = split_by.setdefault(part.name, dim)
            if first is dim:
                continue
            raise LayoutError(
                f"{what}: the layout splits both its dimensions {first.name!r} and"
                f" {dim.name!r} over mesh axis {part.name!r}, and an axis can split only one"
                f" dimension of a tensor. Change the rule {_rule(layout, first)} or the rule"
                f" {_rule(layout, dim)}: drop it, or give the dimension another axis:"
                f" {_other_axes(layout, (first, dim), dims)}."
            )
        if dim.size % axis.size and not layout.may_pad(dim):
            raise LayoutError(
                f"{what}: mesh axis {axis.name!r} of size {axis.size} does not divide dimension"
                f" {dim.name!r} of size {dim.size}. {_what_divides(dim, axis)}"
            )


def check_vectors(layout: Layout, what: str, shape: upstream.Shape, is_part: bool) -> None:
    """Rejects slices of floats that do not fill SIMD vectors.

    CPUs compute the elements after the last full vector one by one, with different rounding.
    `is_part`: the tensor may belong to a microbatch, and then has only a part of the batch, even if
    no axis splits the batch.

    Raises:
      LayoutError: the number of elements of a slice is no multiple of `VECTOR`.
    """
    sizes = layout.slice_size(shape)
    cut = [
        i
        for i, (dim, size) in enumerate(zip(shape.dims, sizes, strict=True))
        if size < dim.size or (is_part and declared(dim.name).rows)
    ]
    count = math.prod(sizes[cut[-1] :]) if cut else 0
    if count % VECTOR:
        named = [name_in_use(dim.name) for dim in shape.dims[cut[-1] :]]
        hparams = " or ".join(dict.fromkeys(_HPARAMS.get(name, name) for name in named))
        raise layout.inexact(
            f"Tensor {what!r} {describe(shape)}",
            f"needs slices of a multiple of {VECTOR} elements from dimension {named[0]!r} on, and a"
            f" processor has {count}: split less, change {hparams}",
        )


def _check_exact(layout: Layout, what: str, dims: Iterable[upstream.Dimension]) -> None:
    """Rejects split dimensions that `exact_sums` cannot sum in a fixed order."""
    for dim in dims:
        name = name_in_use(dim.name)
        axis = layout.axis_of(name)
        if axis is None or axis.size == 1:
            continue
        if name not in layout.exactly_split:
            raise layout.inexact(
                what,
                f"can split {', '.join(layout.exactly_split)}, and the layout splits {name!r} over"
                f" mesh axis {axis.name!r}: drop that rule",
            )
        if layout.num_parts(name, dim.size) % axis.size:
            raise layout.inexact(
                what,
                f"sums dimension {name!r} of size {dim.size} in {layout.num_parts(name, dim.size)}"
                f" parts, which mesh axis {axis.name!r} of size {axis.size} does not divide."
                f" {_what_divides(dim, axis).removesuffix('.')}",
            )


def _rule(layout: Layout, dim: upstream.Dimension) -> str:
    return f"'{dim.name}:{JOIN.join(axis.name for axis in layout.axes_of(dim.name))}'"


def _other_axes(
    layout: Layout, clashing: Sequence[upstream.Dimension], dims: Sequence[upstream.Dimension]
) -> str:
    """Suggests rules for one of the clashing dimensions."""
    taken = {axis.name for dim in dims for axis in layout.axes_of(dim.name)}
    free = [axis for axis in layout.mesh_shape.dims if axis.name not in taken and axis.size > 1]
    rules = [
        f"'{dim.name}:{axis.name}'"
        for axis in free
        for dim in clashing
        if dim.size % axis.size == 0
    ]
    if rules:
        return f"{' or '.join(rules)} would do here"
    return "this mesh has none that would do here"


def _what_divides(dim: upstream.Dimension, axis: upstream.Dimension) -> str:
    """Suggests sizes of the axis and of the dimension that would work."""
    sizes = [n for n in range(1, dim.size + 1) if dim.size % n == 0]
    near = sorted(sorted(sizes, key=lambda n: abs(n - axis.size))[:3])
    below, above = dim.size // axis.size * axis.size, -(-dim.size // axis.size) * axis.size
    return (
        f"Sizes of the axis that would work: {', '.join(map(str, near))}; of the dimension:"
        f" {', '.join(str(n) for n in (below, above) if n)}. Or drop the rule"
        f" '{dim.name}:{axis.name}'."
    )
