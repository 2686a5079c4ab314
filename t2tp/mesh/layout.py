"""Which dimension of a tensor is split over which axis of the mesh.

Two short strings define a layout: a mesh shape, `data:2;model:4` (axis:size), and layout rules,
`batch:data;d_ff:model;heads:model` (dimension:axis). A dimension may be split over several axes,
`batch:data+expert`; the first axis is the major one. An axis that the mesh does not have is
left out, so that one layout serves many meshes. A layout that cannot work is rejected here, before
a program is built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from t2tp import upstream
from t2tp.mesh.axes import JOIN, MeshAxes
from t2tp.mesh.stages import LAYERS, Pipeline
from t2tp.mesh.zero import Storage, axes_at_rest, name_in_use, sharded_at_rest
from t2tp.suggestions import nearest, similar

_PAIR = re.compile(r"^\s*([A-Za-z_][\w\-]*)\s*:\s*([^\s:]+)\s*$")
_AXES = re.compile(r"^[^\s:;,+]+(\+[^\s:;,+]+)*$")

_USUALLY_SPLIT = (
    "batch",
    "length",
    "vocab",
    "d_model",
    "d_ff",
    "heads",
    "experts",
    "height",
    "width",
    "filters",
)

# Dimensions that an axis need not divide, because the data gives their size: slices are padded.
_PADDED = ("vocab",)

# Padding of less than this fraction of a dimension costs too little to matter.
_LITTLE_PADDING = 0.01

# Dimensions without a rule that inherit axes: `expert_groups` inherits the batch's axes, minus the
# experts'.
_FOLLOWERS = {"expert_groups": ("batch", "experts")}


class LayoutError(ValueError):
    """A mesh shape or layout that cannot work."""


def _pairs(text: str, what: str, example: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"[;,]", text):
        if not part.strip():
            continue
        match = _PAIR.match(part)
        if match is None:
            raise LayoutError(
                f"{what} {text!r}: {part.strip()!r} is not of the form {example.split(';')[0]!r}"
                f" (pairs are separated by ';', as in {example!r})."
            )
        yield match.group(1), match.group(2)


def parse_mesh_shape(mesh_shape: str | upstream.Shape) -> upstream.Shape:
    """Reads a mesh shape such as `data:2;model:4`; the empty string is a mesh of one processor.

    Raises:
      LayoutError: a pair is malformed, a size is not a positive integer, an axis comes twice.
    """
    if isinstance(mesh_shape, upstream.Shape):
        return mesh_shape
    axes: dict[str, int] = {}
    for name, size in _pairs(mesh_shape, "Mesh shape", "data:2;model:4"):
        if not size.isdecimal() or int(size) == 0:
            raise LayoutError(
                f"Mesh shape {mesh_shape!r}: the size of axis {name!r} must be a positive integer,"
                f" not {size!r}."
            )
        if name in axes:
            raise LayoutError(f"Mesh shape {mesh_shape!r} names axis {name!r} twice.")
        axes[name] = int(size)
    return upstream.Shape([upstream.Dimension(name, size) for name, size in axes.items()])


def parse_rules(rules: str, what: str = "Layout") -> list[tuple[str, tuple[str, ...]]]:
    """Reads layout rules such as `batch:data+expert;d_ff:model` as (dimension, axes) pairs.

    Args:
      rules: the text.
      what: noun for the text in errors.

    Raises:
      LayoutError: a pair is malformed, or names an axis twice.
    """
    pairs = dict.fromkeys(_pairs(rules, what, "batch:data;d_ff:model"))
    split = [(dim, tuple(axes.split(JOIN))) for dim, axes in pairs]
    for dim, axes in split:
        if "" in axes or len(set(axes)) < len(axes):
            raise LayoutError(
                f"{what} {rules!r}: {dim}:{JOIN.join(axes)} must name different axes, as in"
                " 'batch:data+expert'."
            )
    return split


class Layout:
    """A mesh shape together with the rules that lay tensors out on it.

    Attributes:
      mesh_shape: an `mtf.Shape`, one dimension an axis.
      axes: the axes of the mesh, and the joint axes that rules form of them.
      rules: (dimension name, axis names) pairs, in the order given.
      mtf_rules: the rules with one axis that the mesh has, as an `mtf.LayoutRules`.
      storage: how variables are sharded at rest.
      pipeline: how stages of layers run, if a rule splits `layers`.
    """

    def __init__(
        self,
        mesh_shape: str | upstream.Shape = "",
        rules: str = "",
        storage: Storage | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.mesh_shape = parse_mesh_shape(mesh_shape)
        self.axes = MeshAxes(self.mesh_shape)
        self.rules = parse_rules(rules)
        self.mtf_rules = upstream.LayoutRules(
            [(dim, axes[0]) for dim, axes in self.rules if len(axes) == 1]
        )
        self._axis_index = {axis.name: i for i, axis in enumerate(self.mesh_shape.dims)}
        self._parts: dict[str, tuple[int, ...]] = {}
        self._axis_of: dict[str, upstream.Dimension | None] = {}
        for dim, axes in self.rules:
            parts = tuple(self._axis_index[axis] for axis in axes if axis in self._axis_index)
            if not parts:
                continue
            taken = self._parts.setdefault(dim, parts)
            if taken != parts:
                first, second = (self._join(parts) for parts in (taken, parts))
                raise LayoutError(
                    f"Layout rules {rules!r} split dimension {dim!r} twice, over {first!r} and over"
                    f" {second!r}. To split it over both, write one rule:"
                    f" '{dim}:{first}{JOIN}{second}'."
                )
        self.storage = storage or Storage()
        self._storage_rules = dict(parse_rules(self.storage.rules, "storage_layout"))
        if self.storage.axes and not _AXES.match(self.storage.axes):
            raise LayoutError(
                f"zero_axes={self.storage.axes!r} must be axes, as in 'data' or 'pod+data'."
            )
        self._check_storage_axes()
        if self._storage_rules and not self.storage.stage:
            raise LayoutError(
                f"storage_layout={self.storage.rules!r} shards variables at rest, but zero_stage=0"
                " turns sharding off: set zero_stage to 1, 2 or 3."
            )
        self.pipeline = pipeline or Pipeline()
        self._check_stages()

    def _storage_axes(self) -> dict[str, list[str]]:
        """Returns the axes that each storage setting names."""
        return {
            "zero_axes": self.storage.axes.split(JOIN) if self.storage.axes else [],
            "storage_layout": [axis for axes in self._storage_rules.values() for axis in axes],
        }

    def _check_storage_axes(self) -> None:
        """Rejects axes that the mesh lacks, unless it has only one processor."""
        for setting, axes in self._storage_axes().items():
            for axis in axes if self.size > 1 else ():
                if axis not in self._axis_index:
                    raise LayoutError(
                        f"{setting}: the mesh {self.mesh_text} has no axis {axis!r};"
                        f" {nearest(axis, self._axis_index, 'axes')}"
                    )

    def _check_stages(self) -> None:
        """Rejects rules that split other dimensions, or shard variables, over the stages' axis.

        The processors along this axis have different layers, and so different variables.
        """
        if self.num_stages == 1:
            return
        stages = set(self._parts[LAYERS])
        for name, axes in self._storage_axes().items():
            for axis in axes:
                if self._axis_index.get(axis) in stages:
                    raise LayoutError(
                        f"{name}: the processors of mesh axis {axis!r} have different layers, so"
                        " that no variable can be sharded over it at rest: name other axes."
                    )
        for dim, parts in self._parts.items():
            if dim != LAYERS and stages.intersection(parts):
                axis = self._join(self._parts[LAYERS])
                raise LayoutError(
                    f"The layout splits the layers over mesh axis {axis!r}, whose processors"
                    f" compute different layers, so this axis cannot also split {dim!r}: give"
                    f" {dim!r} or the layers another axis."
                )

    @classmethod
    def from_hparams(cls, hparams: Any) -> Layout:
        """Reads mesh, rules, storage and pipeline from a run's hparams.

        Args:
          hparams: `HParams`, a mapping or None. A missing name has its default.

        Raises:
          LayoutError: one of them cannot be read.
        """
        declared = () if hparams is None else hparams

        def read(name: str, default: Any) -> Any:
            return hparams.get(name) if name in declared else default

        storage = Storage(
            read("zero_stage", 0),
            read("zero_axes", ""),
            read("storage_layout", ""),
            read("zero_prefetch", 1),
        )
        pipeline = Pipeline(
            read("pipeline_schedule", "1f1b"),
            read("pipeline_chunks", 1),
            read("pipeline_layers", ""),
        )
        return cls(read("mesh_shape", ""), read("layout", ""), storage, pipeline)

    @classmethod
    def from_arguments(cls, mesh_shape: str, layout: str | Layout) -> Layout:
        """Reads the arguments of a public function: two strings, or one `Layout`.

        Raises:
          LayoutError: one of them cannot be read, or a mesh shape is given next to a `Layout`.
        """
        if not isinstance(layout, Layout):
            return cls(mesh_shape, layout)
        if mesh_shape:
            raise LayoutError(
                f"mesh_shape={mesh_shape!r} is given next to {layout!r}, which has its own mesh:"
                " leave mesh_shape out, or give layout as rules such as 'batch:data'."
            )
        return layout

    def __repr__(self) -> str:
        storage = f", {self.storage}" if self.storage.stage else ""
        return f"Layout({self.mesh_text!r}, {self.rules_text!r}{storage})"

    def __str__(self) -> str:
        """Mesh and rules: `mesh data:2;model:2, layout batch:data;d_ff:model`."""
        zero = f", ZeRO stage {self.storage.stage}" if self.storage.stage else ""
        rules = self.rules_text or "(none)"
        return f"mesh {self.mesh_text or 'of one device'}, layout {rules}{zero}"

    @property
    def mesh_text(self) -> str:
        """The mesh shape as it is written: `data:2;model:4`."""
        return ";".join(f"{axis.name}:{axis.size}" for axis in self.mesh_shape.dims)

    @property
    def rules_text(self) -> str:
        """The rules as they are written: `batch:data;d_ff:model`."""
        return ";".join(f"{dim}:{JOIN.join(axes)}" for dim, axes in self.rules)

    @property
    def size(self) -> int:
        """Number of processors of the mesh."""
        return self.mesh_shape.size

    @property
    def stage_axis(self) -> int | None:
        """The index of the axis that splits the layers; None without stages."""
        return self.axis_index(LAYERS)

    @property
    def num_stages(self) -> int:
        """Number of stages; 1 if nothing splits the layers."""
        axis = self.axis_of(LAYERS)
        return axis.size if axis else 1

    @property
    def batch_shards(self) -> int:
        """Number of parts into which the batch is split."""
        axis = self.axis_of("batch")
        return axis.size if axis else 1

    def stage_of(self, pnum: int) -> int:
        """Returns the stage whose layers processor `pnum` computes."""
        place, stage = self.coordinates(pnum), 0
        for axis in self.axes_of(LAYERS):
            stage = stage * axis.size + place[axis.name]
        return stage

    def axis_of(self, dim_name: str) -> upstream.Dimension | None:
        """Returns the axis over which a dimension is split, or None.

        A joint axis has the names of its parts, `data+expert`, and the product of their sizes.
        """
        if dim_name not in self._axis_of:
            parts = self._parts_of(dim_name)
            axis = self.axes.dimension(self.axes.index(parts)) if parts else None
            self._axis_of[dim_name] = axis
        return self._axis_of[dim_name]

    def axes_of(self, dim_name: str) -> list[upstream.Dimension]:
        """Returns the mesh's own axes over which a dimension is split, the major one first."""
        return [self.mesh_shape.dims[part] for part in self._parts_of(dim_name)]

    def axis_index(self, dim_name: str) -> int | None:
        """Returns the index of the axis that splits a dimension, or None; see `MeshAxes`.

        An axis of one processor splits nothing.
        """
        parts = [part for part in self._parts_of(dim_name) if self.axes.size(part) > 1]
        return self.axes.index(parts) if parts else None

    def _parts_of(self, dim_name: str) -> tuple[int, ...]:
        """Returns the indices of the mesh's axes that split a dimension, the major one first."""
        if extra := axes_at_rest(dim_name):
            used = self._parts_of(name_in_use(dim_name))
            return (*used, *(self._axis_index[axis] for axis in extra))
        if dim_name in self._parts or dim_name not in _FOLLOWERS:
            return self._parts.get(dim_name, ())
        leader, other = _FOLLOWERS[dim_name]
        taken = self._parts_of(other)
        return tuple(part for part in self._parts_of(leader) if part not in taken)

    def _join(self, parts: Sequence[int]) -> str:
        return JOIN.join(self.mesh_shape.dims[part].name for part in parts)

    def at_rest(self, shape: upstream.Shape) -> upstream.Shape:
        """Returns the shape of a trainable variable at rest, as `storage` says.

        Args:
          shape: the shape in use.

        Raises:
          LayoutError: a storage rule shards over an axis that splits the variable already, or over
            axes that do not divide the slices of a split dimension.
        """
        if not self.storage.stage:
            return shape
        for dim in shape.dims:
            if dim.name in self._storage_rules:
                return self._at_rest_by_rule(shape, dim)
        axes = self._free_zero_axes(shape)
        if self._storage_rules or shape.ndims < 2 or not axes:
            return shape
        count = self._count(axes)
        free = [dim for dim in shape.dims if self.axis_index(dim.name) is None]
        padding = {dim: -(-dim.size // count) * count / dim.size - 1 for dim in free}
        # Slices of a split dimension must divide evenly: padding would shift the later ones.
        divisible = [d for d in shape.dims if d not in free and self._slice_of(d) % count == 0]
        # Slices along the first dimension are contiguous in memory, so that neither the gather nor
        # the reduce-scatter transposes. This is worth a little padding.
        candidates = [dim for dim in free if padding[dim] < _LITTLE_PADDING] + divisible
        candidates += sorted((d for d in free if d.size > 1), key=padding.__getitem__)
        return _with(shape, candidates[0], axes) if candidates else shape

    def _at_rest_by_rule(self, shape: upstream.Shape, dim: upstream.Dimension) -> upstream.Shape:
        """Shards a dimension as its storage rule says."""
        axes = self._real(self._storage_rules[dim.name])
        rule = f"storage_layout: the rule '{dim.name}:{JOIN.join(self._storage_rules[dim.name])}'"
        for other in shape.dims:
            for axis in axes:
                if axis in {each.name for each in self.axes_of(other.name)}:
                    raise LayoutError(
                        f"{rule} shards variable {describe(shape)} over mesh axis {axis!r}, which"
                        f" splits its dimension {other.name!r} already: name another axis, or drop"
                        " the rule."
                    )
        if self.axis_index(dim.name) is not None and self._slice_of(dim) % self._count(axes):
            raise LayoutError(
                f"{rule} divides slices of {self._slice_of(dim)} by {self._count(axes)}: shard"
                f" another dimension of {describe(shape)}, or leave storage_layout empty."
            )
        return _with(shape, dim, axes)

    def stays_whole(self, shape: upstream.Shape) -> bool:
        """Whether no dimension of a weight can be sharded, although there are axes to shard it."""
        return (
            shape.ndims > 1
            and not self._storage_rules
            and bool(self._free_zero_axes(shape))
            and self.at_rest(shape) == shape
        )

    def _free_zero_axes(self, shape: upstream.Shape) -> list[str]:
        """Returns the axes to shard a variable over: axes that do not split it in use."""
        taken = {axis.name for dim in shape.dims for axis in self.axes_of(dim.name)}
        return [axis for axis in self._zero_axes() if axis not in taken]

    def _count(self, axes: Iterable[str]) -> int:
        return math.prod(self.mesh_shape.get_dim_by_name(axis).size for axis in axes)

    def _slice_of(self, dim: upstream.Dimension) -> int:
        return self.slice_size(upstream.Shape([dim]))[0]

    def _zero_axes(self) -> list[str]:
        """Returns the axes over which variables are sharded at rest without storage rules."""
        if self.storage.axes:
            return self._real(self.storage.axes.split(JOIN))
        return self._real([axis.name for axis in self.axes_of("batch")])

    def _real(self, axes: Iterable[str]) -> list[str]:
        """Returns the axes that the mesh has, with more than one processor."""
        sizes = {axis.name: axis.size for axis in self.mesh_shape.dims}
        return [axis for axis in axes if sizes.get(axis, 1) > 1]

    def coordinates(self, pnum: int) -> dict[str, int]:
        """Place of processor `pnum` on each axis of the mesh (the last axis varies fastest)."""
        place = {}
        for axis in reversed(self.mesh_shape.dims):
            place[axis.name] = pnum % axis.size
            pnum //= axis.size
        return place

    def check(self, name: str, shape: upstream.Shape) -> None:
        """Rejects a tensor that the rules cannot lay out.

        Args:
          name: what to call the tensor in the error.
          shape: its global shape.

        Raises:
          LayoutError: two of its dimensions fall on one axis, or an axis does not divide its
            dimension.
        """
        self.check_dimensions(f"Tensor {name!r} {describe(shape)}", shape)

    def check_dimensions(self, what: str, dims: Iterable[upstream.Dimension]) -> None:
        """Rejects dimensions of one tensor or operation that cannot be split together.

        Args:
          what: the tensor or operation, as the subject of the error's sentence.
          dims: dimensions with different names.
        """
        dims = list(dims)
        split_by: dict[str, upstream.Dimension] = {}
        for dim in dims:
            axis = self.axis_of(dim.name)
            if axis is None:
                continue
            for part in self.axes_of(dim.name):
                first = split_by.setdefault(part.name, dim)
                if first is dim:
                    continue
                raise LayoutError(
                    f"{what}: the layout splits both its dimensions {first.name!r} and"
                    f" {dim.name!r} over mesh axis {part.name!r}, and an axis can split only one"
                    f" dimension of a tensor. Change the rule {self._rule(first)} or the rule"
                    f" {self._rule(dim)}: drop it, or give the dimension another axis:"
                    f" {self._other_axes((first, dim), dims)}."
                )
            if dim.size % axis.size and not self._may_pad(dim):
                raise LayoutError(
                    f"{what}: mesh axis {axis.name!r} of size {axis.size} does not divide dimension"
                    f" {dim.name!r} of size {dim.size}. {_what_divides(dim, axis)}"
                )

    @staticmethod
    def _may_pad(dim: upstream.Dimension) -> bool:
        return dim.name in _PADDED or bool(axes_at_rest(dim.name))

    def is_padded(self, dim: upstream.Dimension) -> bool:
        """Whether the last slices along a dimension are padded, as its axis does not divide it."""
        axis = self.axis_of(dim.name)
        return axis is not None and dim.size % axis.size > 0

    def _rule(self, dim: upstream.Dimension) -> str:
        return f"'{dim.name}:{self._join(self._parts_of(dim.name))}'"

    def _other_axes(
        self, clashing: Sequence[upstream.Dimension], dims: Sequence[upstream.Dimension]
    ) -> str:
        """Suggests rules for one of the clashing dimensions."""
        taken = {axis.name for dim in dims for axis in self.axes_of(dim.name)}
        free = [axis for axis in self.mesh_shape.dims if axis.name not in taken and axis.size > 1]
        rules = [
            f"'{dim.name}:{axis.name}'"
            for axis in free
            for dim in clashing
            if dim.size % axis.size == 0
        ]
        if rules:
            return f"{' or '.join(rules)} would do here"
        return "this mesh has none that would do here"

    def slice_size(self, shape: upstream.Shape) -> tuple[int, ...]:
        """Shape of the slice of a tensor that one processor holds, with its padding."""
        axes = [self.axis_of(dim.name) for dim in shape.dims]
        return tuple(
            -(-dim.size // (axis.size if axis else 1))
            for dim, axis in zip(shape.dims, axes, strict=True)
        )

    def slice_begin(self, shape: upstream.Shape, pnum: int) -> tuple[int, ...]:
        """Global index at which processor `pnum`'s slice begins; beyond the end if it is empty."""
        place = self.coordinates(pnum)
        begin = []
        for dim, size in zip(shape.dims, self.slice_size(shape), strict=True):
            index = 0
            for axis in self.axes_of(dim.name):
                index = index * axis.size + place[axis.name]
            begin.append(index * size)
        return tuple(begin)

    def slices(self, shape: upstream.Shape, pnum: int) -> tuple[slice, ...]:
        """Processor `pnum`'s slice without padding, as an index into the whole tensor."""
        begin, size = self.slice_begin(shape, pnum), self.slice_size(shape)
        return tuple(
            slice(min(b, dim.size), min(b + n, dim.size))
            for b, n, dim in zip(begin, size, shape.dims, strict=True)
        )

    def is_split(self, shape: upstream.Shape) -> bool:
        """Whether the processors hold different parts of the tensor."""
        return self.slice_size(shape) != tuple(shape.to_integer_list)

    def warnings(self, shapes: Iterable[upstream.Shape]) -> list[str]:
        """Returns warnings about rules and axes without effect on a model: probably typos.

        Args:
          shapes: the shapes of all tensors of the model.
        """
        seen = {name_in_use(dim.name) for shape in shapes for dim in shape.dims}
        seen.add(LAYERS)  # Splits the model into stages; no tensor has this dimension.
        messages = []
        for dim, axes in self.rules:
            idle = f"Layout rule '{dim}:{JOIN.join(axes)}' has no effect"
            known = [axis for axis in axes if axis in self._axis_index]
            if known and len(known) < len(axes):
                idle = f"Layout rule '{dim}:{JOIN.join(axes)}' splits over {JOIN.join(known)} only"
            for axis in axes:
                if axis in known:
                    continue
                if dim in self._axis_index and axis in seen:
                    messages.append(f"{idle}: it says axis:dimension; did you mean '{axis}:{dim}'?")
                elif similar(axis, self._axis_index):
                    meant = nearest(axis, self._axis_index, "axes")
                    messages.append(f"{idle}: the mesh has no axis {axis!r}; {meant}")
                elif dim not in seen:
                    messages.append(
                        f"{idle}: there is neither an axis {axis!r} nor a dimension {dim!r}"
                    )
            if len(known) == len(axes) and dim not in seen:
                meant = nearest(dim, seen, "dimensions")
                messages.append(f"{idle}: no tensor of the model has a dimension {dim!r}; {meant}")
        used = {axis.name for name in seen for axis in self.axes_of(name)}
        for axis in self.mesh_shape.dims:
            if axis.name not in used and axis.size > 1:
                messages.append(
                    f"Mesh axis {axis.name!r} of size {axis.size} splits nothing: its processors"
                    f" all do the same work{self._could_split(axis, seen)}"
                )
        return messages

    def _could_split(self, axis: upstream.Dimension, seen: Collection[str]) -> str:
        """Suggests what an idle axis could split, as the end of a sentence."""
        for dim, others in self.rules:
            if dim in seen and self.axis_of(dim) is None:
                other = JOIN.join(others)
                return (
                    f"; the mesh has no axis {other!r}, which the rule '{dim}:{other}' names: did"
                    f" you mean '{dim}:{axis.name}'?"
                )
        free = {name for name in seen if self.axis_of(name) is None}
        # Dimensions that operations create would only hide the dimensions that people split.
        free = free & set(_USUALLY_SPLIT) or free
        return f"; no rule splits {', '.join(sorted(free))}." if free else "."


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


def _with(shape: upstream.Shape, dim: upstream.Dimension, axes: Sequence[str]) -> upstream.Shape:
    """Returns the shape at rest if one of its dimensions is sharded over some axes."""
    if not axes:
        return shape
    return upstream.Shape([sharded_at_rest(d, axes) if d == dim else d for d in shape.dims])


def describe(shape: upstream.Shape) -> str:
    """Formats a shape: `[batch=8, length=128]`."""
    return "[" + ", ".join(f"{dim.name}={dim.size}" for dim in shape.dims) + "]"


def num_bytes(shape: Iterable[int], itemsize: int) -> int:
    """Size in bytes of an array."""
    return math.prod(shape) * itemsize
