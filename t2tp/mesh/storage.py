"""ZeRO: weights and optimizer state that are sharded between their uses.

Processors that differ only in their part of the batch hold the same weights and the same optimizer
state. With ZeRO, each processor stores only a part of a variable *at rest*, while no operation uses
the variable. A weight is all-gathered before its use (S. Rajbhandari et al., arXiv:1910.02054,
section 5; FSDP: Y. Zhao et al., arXiv:2304.11277). `t2tp.ops.variables.zero_weights` makes the
gathers; `t2tp.lowering.gather_schedule` decides when they run.

A variable has two shapes. The model sees the shape in use; the optimizer, checkpoints and initial
values see the shape at rest. In the shape at rest, the sharded dimension has another name,
`d_model@data`. It is split first over the axes that split `d_model`, and then over `data`. A gather
is a reshape from the shape at rest to the shape in use, and the reduce-scatter of a gradient is a
reshape back.

The sizes in both shapes never include padding. If axes do not divide a dimension, its last slices
are padded. On `data:4`

    w [d_model=18, d_ff=30]          the shape in use
    w [d_model@data=18, d_ff=30]     the shape at rest, in slices [5, 30]
                                     rows 0-4, 5-9, 10-14, and 15-17 with two rows of zeros

`vocab` may be padded even in use, because its size comes from the data. `Layout.slice_size` counts
padding, and `Layout.slices` returns slices without it. Initial values, checkpoints and gathers
leave padding out, so a checkpoint fits every mesh. An operation that reduces a padded dimension
masks the padding first (`SpmdMeshImpl.masked`). An operation with a padded dimension that is not
element-wise is rejected, unless its signature declares `pads`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from t2tp import upstream
from t2tp.mesh.axes import JOIN
from t2tp.mesh.layout_text import LayoutError, describe, parse_axes, parse_rules
from t2tp.suggestions import check_known

if TYPE_CHECKING:
    from t2tp.mesh.layout import Layout

_AT_REST = "@"
# Padding of less than this fraction is ignored in the choice of the dimension to shard.
_LITTLE_PADDING = 0.01

# Number of floats in the longest vectors of a CPU (AVX-512).
VECTOR = 16


@dataclass(frozen=True)
class Storage:
    """The ZeRO configuration: the stage, and which mesh axes shard which dimensions.

    Attributes:
      stage: 0: nothing is sharded. 1: optimizer state and updates are sharded; weights are gathered
        once a step. 2: gradients are sharded too, by a reduce-scatter for each microbatch. 3:
        weights are gathered where a layer uses them, and again for the layer's backward pass.
      axes: mesh axes to shard over, joined by `+`. Default: the axes that split the batch.
      rules: the dimensions to shard and their axes, as layout rules: `d_model:data`. Default: each
        variable with two or more dimensions shards one of them; see `Layout.at_rest`.
      prefetch: how many layers ahead to gather weights (stage 3).
    """

    stage: int = 0
    axes: str = ""
    rules: str = ""
    prefetch: int = 1


def shape_in_use(shape: upstream.Shape) -> upstream.Shape:
    """Converts a variable's shape at rest to its shape in use."""
    return upstream.Shape([upstream.Dimension(name_in_use(d.name), d.size) for d in shape.dims])


def name_in_use(dim_name: str) -> str:
    """Returns the name of a dimension in use, without the axes that shard it at rest."""
    return dim_name.partition(_AT_REST)[0]


def axes_at_rest(dim_name: str) -> list[str]:
    """Returns the names of the axes that shard a dimension only at rest."""
    _, _, axes = dim_name.partition(_AT_REST)
    return axes.split(JOIN) if axes else []


class ShapesAtRest:
    """The shapes that variables have at rest on a mesh.

    Attributes:
      named_axes: the axes that each storage setting names.
    """

    def __init__(self, layout: Layout) -> None:
        """Reads the storage settings of a layout.

        Raises:
          LayoutError: a setting is malformed, names an axis that the mesh lacks, or has no effect.
        """
        self._layout, storage = layout, layout.storage
        self._rules = dict(parse_rules(storage.rules, "storage_layout"))
        self._axes = parse_axes(storage.axes, "zero_axes")
        self.named_axes = {
            "zero_axes": self._axes,
            "storage_layout": [axis for axes in self._rules.values() for axis in axes],
        }
        known = layout.mesh_shape.dimension_names
        for setting, axes in self.named_axes.items():
            for axis in axes if layout.size > 1 else ():
                sentence = f"{setting}: the mesh {layout.mesh_text} has no axis {axis!r}"
                check_known(axis, known, "axes", sentence, LayoutError)
        if self._rules and not storage.stage:
            raise LayoutError(
                f"storage_layout={storage.rules!r} shards variables at rest, but zero_stage=0"
                " turns sharding off: set zero_stage to 1, 2 or 3."
            )

    def __call__(self, shape: upstream.Shape) -> upstream.Shape:
        """Returns the shape at rest of a trainable variable or, in stage 3, of a frozen weight.

        Raises:
          LayoutError: a storage rule shards over an axis that splits the variable already, or over
            axes that do not divide the slices of a split dimension.
        """
        if not self._layout.storage.stage:
            return shape
        for dim in shape.dims:
            if dim.name in self._rules:
                return self._at_rest_by_rule(shape, dim)
        axes = self._free_zero_axes(shape)
        if self._rules or shape.ndims < 2 or not axes:
            return shape
        count = self._count(axes)
        free = [dim for dim in shape.dims if self._layout.axis_index(dim.name) is None]
        padding = {dim: -(-dim.size // count) * count / dim.size - 1 for dim in free}
        # Slices of a split dimension must divide evenly: padding would shift the later slices.
        divisible = [d for d in shape.dims if d not in free and self._slice_of(d) % count == 0]
        # Slices along the first dimension are contiguous in memory, so gather and reduce-scatter
        # need no transpose. This is worth a little padding.
        candidates = [dim for dim in free if padding[dim] < _LITTLE_PADDING] + divisible
        candidates += sorted((d for d in free if d.size > 1), key=padding.__getitem__)
        for dim in candidates:
            sharded = _with(shape, dim, axes)
            sizes = self._layout.slice_size(sharded)[shape.dims.index(dim) :]
            # `exact_sums` needs whole SIMD vectors, which small variables, such as biases, lack.
            if not self._layout.exact_sums or math.prod(sizes) % VECTOR == 0:
                return sharded
        return shape

    def _at_rest_by_rule(self, shape: upstream.Shape, dim: upstream.Dimension) -> upstream.Shape:
        """Shards a dimension over the axes of its storage rule."""
        axes = self._real(self._rules[dim.name])
        rule = f"storage_layout: the rule '{dim.name}:{JOIN.join(self._rules[dim.name])}'"
        for other in shape.dims:
            for axis in axes:
                if axis in {each.name for each in self._layout.axes_of(other.name)}:
                    raise LayoutError(
                        f"{rule} shards variable {describe(shape)} over mesh axis {axis!r}, which"
                        f" splits its dimension {other.name!r} already: name another axis, or drop"
                        " the rule."
                    )
        is_split = self._layout.axis_index(dim.name) is not None
        if is_split and self._slice_of(dim) % self._count(axes):
            raise LayoutError(
                f"{rule} divides slices of {self._slice_of(dim)} by {self._count(axes)}: shard"
                f" another dimension of {describe(shape)}, or leave storage_layout empty."
            )
        return _with(shape, dim, axes)

    def stays_whole(self, shape: upstream.Shape) -> bool:
        """Whether no dimension of a weight can be sharded, although axes are free for it."""
        return (
            shape.ndims > 1
            and not self._rules
            and bool(self._free_zero_axes(shape))
            and self(shape) == shape
        )

    def _free_zero_axes(self, shape: upstream.Shape) -> list[str]:
        """Returns the axes to shard a variable over without rules: those unused by its dims."""
        taken = {axis.name for dim in shape.dims for axis in self._layout.axes_of(dim.name)}
        axes = self._axes or [axis.name for axis in self._layout.axes_of("batch")]
        return [axis for axis in self._real(axes) if axis not in taken]

    def _count(self, axes: Iterable[str]) -> int:
        return math.prod(self._layout.mesh_shape.get_dim_by_name(axis).size for axis in axes)

    def _slice_of(self, dim: upstream.Dimension) -> int:
        return self._layout.slice_size(upstream.Shape([dim]))[0]

    def _real(self, axes: Iterable[str]) -> list[str]:
        """Returns the axes that the mesh has, with more than one processor."""
        sizes = {axis.name: axis.size for axis in self._layout.mesh_shape.dims}
        return [axis for axis in axes if sizes.get(axis, 1) > 1]


def _with(shape: upstream.Shape, dim: upstream.Dimension, axes: Sequence[str]) -> upstream.Shape:
    """Returns `shape` with `dim` sharded over `axes`; without axes, `shape` itself."""
    if not axes:
        return shape
    at_rest = upstream.Dimension(f"{dim.name}{_AT_REST}{JOIN.join(axes)}", dim.size)
    return upstream.Shape([at_rest if d == dim else d for d in shape.dims])
