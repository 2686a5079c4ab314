"""Which dimension of a tensor is split over which axis of the mesh.

Two short strings define a layout: a mesh shape, `data:2;model:4` (axis:size), and layout rules,
`batch:data;d_ff:model;heads:model` (dimension:axis). A dimension may be split over several axes,
`batch:data+expert`, which form a *joint axis*; the first axis is the major one. A rule's axis that
the mesh does not have is ignored, so the same rules serve many meshes. Rules that contradict each
other are rejected here. Tensors that the rules cannot split are rejected in `layout_conflicts`,
while a graph is built.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from t2tp import upstream
from t2tp.argument_types import checked
from t2tp.mesh.axes import JOIN, MeshAxes
from t2tp.mesh.dimensions import BATCH, POSITIONS, declared, names_with
from t2tp.mesh.layout_text import LayoutError, parse_mesh_shape, parse_rules
from t2tp.mesh.stages import LAYERS, Pipeline
from t2tp.mesh.storage import ShapesAtRest, Storage, axes_at_rest, name_in_use

# A dimension with one index per processor, for values that differ between processors.
PROCESSORS = "processors"


class Layout:
    """A mesh shape together with the rules that lay tensors out on it.

    Attributes:
      mesh_shape: an `mtf.Shape` with a dimension for each axis.
      axes: the axes of the mesh, and the joint axes that rules form of them.
      rules: (dimension name, axis names) pairs, in the order in which they were written.
      mtf_rules: the rules with a single axis, as an `mtf.LayoutRules`.
      storage: how variables are sharded *at rest*, between their uses.
      at_rest: `at_rest(shape)` is the shape at rest of a variable.
      pipeline: the schedule of the stages, if a rule splits `layers` into stages.
      exact_sums: number of parts into which a summed dimension is cut, a power of two
        (`t2tp.lowering.exact_sums`). 0: sums have no fixed order.
    """

    @checked
    def __init__(
        self,
        mesh_shape: str | Mapping[str, int] | upstream.Shape = "",
        rules: str | Mapping[str, str | Sequence[str]] = "",
        storage: Storage | None = None,
        pipeline: Pipeline | None = None,
        exact_sums: int = 0,
    ) -> None:
        self.mesh_shape = parse_mesh_shape(mesh_shape)
        self.axes = MeshAxes(self.mesh_shape)
        self.rules = parse_rules(rules)
        self.mtf_rules = upstream.LayoutRules(
            [(dim, axes[0]) for dim, axes in self.rules if len(axes) == 1]
        )
        self._axis_index = {axis.name: i for i, axis in enumerate(self.mesh_shape.dims)}
        # The axes that split a dimension, as indices of the mesh's axes, by the dimension's name.
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
        self.at_rest = ShapesAtRest(self)
        self.pipeline = pipeline or Pipeline()
        self.exact_sums = exact_sums
        # The number of parts into which `of_part` cuts a slice, by the name of the dimension.
        self._parts_on_processor: dict[str, int] = {}
        self._check_stages()
        self._check_exact_sums()

    def _check_stages(self) -> None:
        """Rejects rules and storage settings that use the axis of the stages.

        The processors along this axis have different layers, and so different variables.
        """
        if self.num_stages == 1:
            return
        stages = set(self._parts[LAYERS])
        for name, axes in self.at_rest.named_axes.items():
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

    def _check_exact_sums(self) -> None:
        """Rejects rules with which the parts of a sum would be out of order.

        A rule must name its axes in the mesh's order, and the mesh must name the axes that split
        `length` after the axes that split `batch`.
        """
        for dim, parts in self._parts.items() if self.exact_sums else ():
            rows = self._parts_of(BATCH) if dim == POSITIONS else ()
            if max(rows, default=0) > min(parts):
                raise self.inexact(
                    "mesh_shape",
                    f"needs the axes that split {BATCH!r}, {self._join(rows)!r}, before those that"
                    f" split {dim!r}, {self._join(parts)!r}",
                )
            if list(parts) != sorted(parts):
                raise self.inexact(
                    f"the rule '{dim}:{self._join(parts)}'",
                    f"needs the axes in the mesh's order: '{dim}:{self._join(sorted(parts))}'",
                )

    def inexact(self, what: str, needs: str) -> LayoutError:
        """Returns an error: with `exact_sums`, `what` needs something, or has something."""
        return LayoutError(f"{what}: exact_sums={self.exact_sums} {needs}, or set exact_sums=0.")

    def num_parts(self, name: str, size: int) -> int:
        """Returns the number of parts into which a summed dimension other than `length` is cut.

        1: the dimension is not cut, and with `exact_sums` no axis may split it.
        """
        if name not in self.exactly_split:
            return 1
        return math.gcd(self.exact_sums, size)

    def without_exact_sums(self) -> Layout:
        """Returns this layout without `exact_sums`."""
        return self._changed(exact_sums=0)

    def of_part(self, name: str, count: int) -> Layout:
        """Returns this layout with every slice cut into `count` parts along a dimension.

        `slice_size` is then the size of one part.
        """
        return self._changed(_parts_on_processor={**self._parts_on_processor, name: count})

    def with_whole_rows(self) -> Layout:
        """Returns a layout that splits no row: the axes of the positions split the batch, too."""
        rows = *self._parts_of(BATCH), *self._parts_of(POSITIONS)
        return self._changed(_parts={**self._parts, BATCH: rows, POSITIONS: ()})

    def with_same_rows(self) -> Layout:
        """Returns this layout, except that all processors have the same rows of the batch.

        The layout also splits the dimension `PROCESSORS` over the whole mesh, for the results that
        each processor computes from these rows.
        """
        parts = {dim: parts for dim, parts in self._parts.items() if not declared(dim).rows}
        parts[PROCESSORS] = tuple(range(self.mesh_shape.ndims))
        return self._changed(_parts=parts, exact_sums=0)

    def _changed(self, **attributes: Any) -> Layout:
        """Returns a copy with other values of some attributes."""
        layout = copy.copy(self)
        vars(layout).update(attributes, _axis_of={})
        return layout

    @property
    def spreads_microbatches(self) -> bool:
        """Whether the rows of a microbatch are one consecutive range of the batch.

        If so, only some processors have these rows in their slices of the batch, and the rows are
        first spread over all processors. Otherwise a microbatch consists of a range of rows from
        each processor's slice.

        With `exact_sums` and ZeRO stage 2 or 3, the sums of each microbatch are completed over all
        processors before the sums of the microbatches are added. Each microbatch is then one
        subtree of the tree of additions, and a subtree covers consecutive rows. If an axis of the
        batch also splits the experts, an expert computes rows of several processors. The sums of a
        microbatch over these rows are then complete, too, before microbatches are added.
        """
        gathers = self.axis_index("expert_groups") != self.axis_index(BATCH)
        return self.exact_sums > 0 and (self.storage.stage >= 2 or gathers)

    @property
    def exactly_split(self) -> Sequence[str]:
        """The dimensions of tensors that a layout with `exact_sums` may split; empty without it."""
        return (*names_with(lambda dim: dim.exact), POSITIONS) if self.exact_sums else ()

    @classmethod
    def from_hparams(cls, hparams: Any) -> Layout:
        """Reads mesh, rules, storage and pipeline from a run's hparams.

        Args:
          hparams: `HParams`, a mapping or None. A missing name has its default.

        Raises:
          LayoutError: the mesh, a rule or a setting cannot be read, or `exact_sums` is set and
            activations are not float32.
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
        exact_sums, dtype = read("exact_sums", 0), read("activation_dtype", "float32")
        if exact_sums and dtype != "float32":
            raise LayoutError(
                f"exact_sums={exact_sums} adds up float32, and activation_dtype is {dtype!r}: set"
                " activation_dtype=float32 or exact_sums=0."
            )
        return cls(read("mesh_shape", ""), read("layout", ""), storage, pipeline, exact_sums)

    @classmethod
    def from_arguments(
        cls, mesh_shape: str | Mapping[str, int], layout: str | Mapping[str, Any] | Layout
    ) -> Layout:
        """Reads the arguments of a public function: two strings or dictionaries, or one `Layout`.

        Raises:
          LayoutError: a string cannot be read, or a mesh shape is given next to a `Layout`.
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
        return self.num_slices(LAYERS)

    @property
    def batch_slices(self) -> int:
        """Number of slices of the batch."""
        return self.num_slices(BATCH)

    def num_slices(self, dim_name: str) -> int:
        """Returns the number of slices into which a dimension is split; 1 if it is not split."""
        axis = self.axis_of(dim_name)
        return axis.size if axis else 1

    def stage_of(self, pnum: int) -> int:
        """Returns the stage whose layers processor `pnum` computes."""
        return self.place(LAYERS, pnum)

    def place(self, dim_name: str, pnum: int) -> int:
        """Returns the index of processor `pnum`'s slice along a dimension; 0 if it is not split."""
        axis = self.axis_index(dim_name)
        return 0 if axis is None else self.axes.coordinate(axis, pnum)

    def axis_of(self, dim_name: str) -> upstream.Dimension | None:
        """Returns the axis over which a dimension is split, or None.

        A joint axis of `data` and `expert` has the name `data+expert` and the product of their
        sizes.
        """
        if dim_name not in self._axis_of:
            parts = self._parts_of(dim_name)
            axis = self.axes.index(parts) if parts else None
            self._axis_of[dim_name] = None if axis is None else self.axes.shape.dims[axis]
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
        if extra := axes_at_rest(dim_name):  # Sharded at rest, such as `d_model@data`.
            used = self._parts_of(name_in_use(dim_name))
            return (*used, *(self._axis_index[axis] for axis in extra))
        followed = declared(dim_name).follows
        if dim_name in self._parts or followed is None:
            return self._parts.get(dim_name, ())
        leader, other = followed
        taken = self._parts_of(other)
        return tuple(part for part in self._parts_of(leader) if part not in taken)

    def _join(self, parts: Sequence[int]) -> str:
        return JOIN.join(self.mesh_shape.dims[part].name for part in parts)

    def coordinates(self, pnum: int) -> dict[str, int]:
        """The coordinates of processor `pnum` on the mesh's axes (the last axis varies fastest)."""
        names = self.mesh_shape.dimension_names
        return {name: self.axes.coordinate(axis, pnum) for axis, name in enumerate(names)}

    @staticmethod
    def may_pad(dim: upstream.Dimension) -> bool:
        """Whether a dimension may be split into unequal slices, which are then padded."""
        return declared(dim.name).padded or bool(axes_at_rest(dim.name))

    def is_padded(self, dim: upstream.Dimension) -> bool:
        """Whether the last slices along a dimension are padded: its axis does not divide it."""
        return dim.size % self.num_slices(dim.name) > 0

    def slice_size(self, shape: upstream.Shape) -> tuple[int, ...]:
        """Shape of a processor's slice of a tensor, with padding."""
        return tuple(
            -(-dim.size // (self.num_slices(dim.name) * self._parts_on_processor.get(dim.name, 1)))
            for dim in shape.dims
        )

    def slice_begin(self, shape: upstream.Shape, pnum: int) -> tuple[int, ...]:
        """Global index at which processor `pnum`'s slice begins.

        If the slice has only padding, the index is at or beyond the end of the dimension.
        """
        return tuple(
            self.place(dim.name, pnum) * size
            for dim, size in zip(shape.dims, self.slice_size(shape), strict=True)
        )

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
