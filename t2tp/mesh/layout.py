"""Which dimension of a tensor is split over which axis of the mesh.

Two short strings say it all: a mesh shape, `data:2;model:4` (axis:size), and layout rules,
`batch:data;d_ff:model;heads:model` (dimension:axis). A rule whose axis the mesh does not have is
idle, so that one layout serves many meshes. A layout that cannot work is refused here, before any
work is done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from t2tp import upstream
from t2tp.suggestions import nearest, similar

_PAIR = re.compile(r"^\s*([A-Za-z_][\w\-]*)\s*:\s*([^\s:]+)\s*$")


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


class LayoutError(ValueError):
    """A mesh shape or layout that cannot work."""


def groups(mesh_shape: upstream.Shape, axes: Collection[str]) -> list[list[int]]:
    """For each processor, those that differ from it only in their places on `axes`, in order."""
    numbers = np.arange(mesh_shape.size).reshape(mesh_shape.to_integer_list)
    along = [i for i, axis in enumerate(mesh_shape.dims) if axis.name in axes]
    rows = np.moveaxis(numbers, along, range(-len(along), 0)).reshape(
        -1, math.prod(mesh_shape.dims[i].size for i in along)
    )
    group_of = {pnum: row for row in rows.tolist() for pnum in row}
    return [group_of[pnum] for pnum in range(mesh_shape.size)]


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


def parse_rules(rules: str) -> list[tuple[str, str]]:
    """Reads layout rules such as `batch:data;d_ff:model` as (dimension, axis) pairs.

    Raises:
      LayoutError: a pair is malformed.
    """
    return list(dict.fromkeys(_pairs(rules, "Layout", "batch:data;d_ff:model")))


class Layout:
    """A mesh shape together with the rules that lay tensors out on it.

    Attributes:
      mesh_shape: an `mtf.Shape`, one dimension an axis.
      rules: (dimension name, axis name) pairs, in the order given.
      mtf_rules: the same as an `mtf.LayoutRules`.
    """

    def __init__(self, mesh_shape: str | upstream.Shape = "", rules: str = "") -> None:
        self.mesh_shape = parse_mesh_shape(mesh_shape)
        self.rules = parse_rules(rules)
        self.mtf_rules = upstream.LayoutRules(self.rules)
        self._axis_index = {axis.name: i for i, axis in enumerate(self.mesh_shape.dims)}
        self._dim_to_axis: dict[str, int] = {}
        for dim, axis in self.rules:
            if axis not in self._axis_index:
                continue
            taken = self._dim_to_axis.setdefault(dim, self._axis_index[axis])
            if taken != self._axis_index[axis]:
                raise LayoutError(
                    f"Layout rules {rules!r} split dimension {dim!r} over two axes of the mesh,"
                    f" {self.mesh_shape.dims[taken].name!r} and {axis!r}; a dimension is split over"
                    " one axis. Reshape the tensor to have two dimensions, or drop one of the"
                    " rules."
                )

    @classmethod
    def from_hparams(cls, hparams: Any) -> Layout:
        """Reads the hparams `mesh_shape` and `layout`, the one place where a run's mesh is written.

        Args:
          hparams: `HParams`, a mapping or None; where a name is missing it is empty.

        Raises:
          LayoutError: one of them cannot be read.
        """
        declared = () if hparams is None else hparams
        mesh_shape, rules = (
            hparams.get(name) if name in declared else "" for name in ("mesh_shape", "layout")
        )
        return cls(mesh_shape, rules)

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
        return f"Layout({self.mesh_text!r}, {self.rules_text!r})"

    def __str__(self) -> str:
        """Mesh and rules: `mesh data:2;model:2, layout batch:data;d_ff:model`."""
        return f"mesh {self.mesh_text or 'of one device'}, layout {self.rules_text or '(none)'}"

    @property
    def mesh_text(self) -> str:
        """The mesh shape as it is written: `data:2;model:4`."""
        return ";".join(f"{axis.name}:{axis.size}" for axis in self.mesh_shape.dims)

    @property
    def rules_text(self) -> str:
        """The rules as they are written: `batch:data;d_ff:model`."""
        return ";".join(f"{dim}:{axis}" for dim, axis in self.rules)

    @property
    def size(self) -> int:
        """Number of processors of the mesh."""
        return self.mesh_shape.size

    def axis_of(self, dim_name: str) -> upstream.Dimension | None:
        """The mesh axis over which the dimension is split, or None."""
        index = self._dim_to_axis.get(dim_name)
        return None if index is None else self.mesh_shape.dims[index]

    def coordinates(self, pnum: int) -> dict[str, int]:
        """Place of processor `pnum` on each axis of the mesh (the last axis varies fastest)."""
        place = {}
        for axis in reversed(self.mesh_shape.dims):
            place[axis.name] = pnum % axis.size
            pnum //= axis.size
        return place

    def check(self, name: str, shape: upstream.Shape) -> None:
        """Refuses a tensor that the rules cannot lay out.

        Args:
          name: what to call the tensor in the error.
          shape: its global shape.

        Raises:
          LayoutError: two of its dimensions fall on one axis, or an axis does not divide its
            dimension.
        """
        self.check_dimensions(f"Tensor {name!r} {describe(shape)}", shape)

    def check_dimensions(self, what: str, dims: Iterable[upstream.Dimension]) -> None:
        """Refuses dimensions that are in one place and cannot be split together.

        Args:
          what: has them: the beginning of the error's sentence.
          dims: with different names.
        """
        dims = list(dims)
        split_by: dict[str, upstream.Dimension] = {}
        for dim in dims:
            axis = self.axis_of(dim.name)
            if axis is None:
                continue
            first = split_by.setdefault(axis.name, dim)
            if first is not dim:
                raise LayoutError(
                    f"{what}: the layout splits both its dimensions {first.name!r} and"
                    f" {dim.name!r} over mesh axis {axis.name!r}, and an axis can split only one"
                    f" dimension of a tensor. Drop the rule '{first.name}:{axis.name}' or the rule"
                    f" '{dim.name}:{axis.name}', or give one of them another axis:"
                    f" {self._other_axes((first, dim), dims)}."
                )
            if dim.size % axis.size:
                raise LayoutError(
                    f"{what}: mesh axis {axis.name!r} of size {axis.size} does not divide dimension"
                    f" {dim.name!r} of size {dim.size}. {_what_divides(dim, axis)}"
                )

    def _other_axes(
        self, clashing: Sequence[upstream.Dimension], dims: Sequence[upstream.Dimension]
    ) -> str:
        """The rules that would do for one of the clashing dimensions."""
        taken = {axis.name for dim in dims if (axis := self.axis_of(dim.name))}
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
        """Shape of the slice of a tensor that one processor holds."""
        axes = [self.axis_of(dim.name) for dim in shape.dims]
        return tuple(
            dim.size // (axis.size if axis else 1)
            for dim, axis in zip(shape.dims, axes, strict=True)
        )

    def slice_begin(self, shape: upstream.Shape, pnum: int) -> tuple[int, ...]:
        """Global index at which processor `pnum`'s slice begins."""
        place = self.coordinates(pnum)
        begin = []
        for dim, size in zip(shape.dims, self.slice_size(shape), strict=True):
            axis = self.axis_of(dim.name)
            begin.append(place[axis.name] * size if axis else 0)
        return tuple(begin)

    def slices(self, shape: upstream.Shape, pnum: int) -> tuple[slice, ...]:
        """Processor `pnum`'s slice, as an index into the whole tensor."""
        begin, size = self.slice_begin(shape, pnum), self.slice_size(shape)
        return tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))

    def is_split(self, shape: upstream.Shape) -> bool:
        """Whether the processors hold different parts of the tensor."""
        return self.slice_size(shape) != tuple(shape.to_integer_list)

    def warnings(self, shapes: Iterable[upstream.Shape]) -> list[str]:
        """What in this layout has no effect on a model, in sentences: probably typing errors.

        Args:
          shapes: shapes of all the model's tensors.
        """
        seen = {dim.name for shape in shapes for dim in shape.dims}
        said = []
        for dim, axis in self.rules:
            idle = f"Layout rule '{dim}:{axis}' has no effect"
            if axis not in self._axis_index:
                if dim in self._axis_index and axis in seen:
                    said.append(f"{idle}: it says axis:dimension; did you mean '{axis}:{dim}'?")
                elif similar(axis, self._axis_index):
                    meant = nearest(axis, self._axis_index, "axes")
                    said.append(f"{idle}: the mesh has no axis {axis!r}; {meant}")
                elif dim not in seen:
                    said.append(
                        f"{idle}: there is neither an axis {axis!r} nor a dimension {dim!r}"
                    )
            elif dim not in seen:
                meant = nearest(dim, seen, "dimensions")
                said.append(f"{idle}: no tensor of the model has a dimension {dim!r}; {meant}")
        used = {self.axis_of(name).name for name in seen if self.axis_of(name)}  # type: ignore[union-attr]
        for axis in self.mesh_shape.dims:
            if axis.name not in used and axis.size > 1:
                said.append(
                    f"Mesh axis {axis.name!r} of size {axis.size} splits nothing: its processors"
                    f" all do the same work{self._could_split(axis, seen)}"
                )
        return said

    def _could_split(self, axis: upstream.Dimension, seen: Collection[str]) -> str:
        """What an idle axis could split, as the end of a sentence."""
        for dim, other in self.rules:
            if other not in self._axis_index and dim in seen and self.axis_of(dim) is None:
                return (
                    f"; the mesh has no axis {other!r}, which the rule '{dim}:{other}' names: did"
                    f" you mean '{dim}:{axis.name}'?"
                )
        free = {name for name in seen if self.axis_of(name) is None}
        # Dimensions that operations make on their way would only hide those that people split.
        free = free & set(_USUALLY_SPLIT) or free
        return f"; no rule splits {', '.join(sorted(free))}." if free else "."


def _what_divides(dim: upstream.Dimension, axis: upstream.Dimension) -> str:
    """The sizes of an axis, or of a dimension, that would work."""
    sizes = [n for n in range(1, dim.size + 1) if dim.size % n == 0]
    near = sorted(sorted(sizes, key=lambda n: abs(n - axis.size))[:3])
    below, above = dim.size // axis.size * axis.size, -(-dim.size // axis.size) * axis.size
    return (
        f"Sizes of the axis that would work: {', '.join(map(str, near))}; of the dimension:"
        f" {', '.join(str(n) for n in (below, above) if n)}. Or drop the rule"
        f" '{dim.name}:{axis.name}'."
    )


def describe(shape: upstream.Shape) -> str:
    """Formats a shape: `[batch=8, length=128]`."""
    return "[" + ", ".join(f"{dim.name}={dim.size}" for dim in shape.dims) + "]"


def num_bytes(shape: Iterable[int], itemsize: int) -> int:
    """Size in bytes of an array."""
    return math.prod(shape) * itemsize
