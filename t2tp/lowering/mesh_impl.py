"""Lowers an mtf graph to the program of *one* processor (SPMD).

mesh-tensorflow's `PlacementMeshImpl` writes every operation once per device into one graph. Here
the graph is lowered once. The processor's number is an argument of the program, and every device
runs the same program on its own slices.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering import matmul, random
from t2tp.lowering.microbatch import Microbatch
from t2tp.lowering.slice_shapes import expanded, resized
from t2tp.mesh.collectives import Collectives, head_and_tail
from t2tp.mesh.graph_memo import GraphMemo
from t2tp.mesh.layout import Layout

_MERGE_OPS = {"SUM": "Add", "MAX": "Max", "MIN": "Min"}


class LaidOutTensor(upstream.placement_mesh_impl.PlacementMeshImpl.LaidOutTensor):
    """The processor's slice of a tensor, as the list of one slice that mesh-tensorflow expects."""

    @property
    def slice(self) -> tf.Tensor:
        """The processor's slice."""
        return self.tensor_list[0]


class LazyTensor:
    """A `LaidOutTensor` that is computed only if its elements are needed."""

    def __init__(self, make: Callable[[], LaidOutTensor], slice_shape: list[int]) -> None:
        self._make = make
        self.slice_shape = slice_shape
        self._made = GraphMemo()

    def to_laid_out_tensor(self) -> LaidOutTensor:
        """Returns the tensor, computed once in each TensorFlow graph that needs it."""
        return self._made((), self._make)


class LaidOutVariable:
    """The processor's slice of a variable, which is an argument of the program."""

    def __init__(self, variable: upstream.Variable, mesh_impl: SpmdMeshImpl) -> None:
        """Looks the slice up by the variable's name."""
        self._variable = variable
        self.laid_out_tensor = LaidOutTensor([mesh_impl.variable_slices[variable.name]])

    def assign_to_slices(self, assign_fn: Callable, values: Sequence[tf.Tensor]) -> tf.Operation:
        """Assigns to the slice with `assign_fn(mtf.Variable, tf.Variable, tf.Tensor)`."""
        return tf.group(assign_fn(self._variable, self.laid_out_tensor.slice, values[0]))


class Backend(NamedTuple):
    """The properties of a program's hardware and compiler that affect the lowering.

    Attributes:
      on_cpu: whether the processors are CPUs.
      uses_xla: whether XLA compiles anything.
      compiles_regions: whether XLA compiles the regions that operations mark.
      compiles_step: whether XLA compiles the whole step.
      max_segments: the largest number of segments in a row of the features; 0: unknown.
      memory: bytes of memory for each device; infinite if unknown.
    """

    on_cpu: bool
    compiles_regions: bool
    compiles_step: bool
    uses_xla: bool = True
    max_segments: int = 0
    memory: float = math.inf

    @property
    def scatters_copy(self) -> bool:
        """Whether TensorFlow's scatters copy their target.

        The kernels for CPUs always copy. GPUs and XLA update the target in place if no other
        operation needs it.
        """
        return self.on_cpu and not self.compiles_step

    @property
    def sums_in_stages(self) -> bool:
        """Whether long sums are computed in stages (`t2tp.lowering.staged_sums`).

        On CPUs XLA would add all elements one after the other, with large rounding errors.
        """
        return self.on_cpu and self.compiles_step


class SpmdMeshImpl(upstream.MeshImpl):
    """The mesh implementation that lowers operations for processor `pnum`.

    Attributes:
      computes: whether the program will run. An abstract program does not run, so it need not lower
        operations that compute without communication (`Hooks.is_local`), and its random numbers are
        placeholders.
    """

    def __init__(
        self,
        layout: Layout,
        collectives: Collectives,
        pnum: tf.Tensor,
        step: tf.Tensor,
        seed: int,
        variable_slices: Mapping[str, tf.Variable],
        target: Backend,
        names_by_stage: Callable[[str], Sequence[str | None] | None],
        computes: bool,
    ) -> None:
        """Prepares to lower one graph for processor `pnum`, an int32 scalar.

        The random numbers depend on `seed` and on the training step, an int64 scalar.
        `variable_slices` has the processor's slice of each variable, by name. `names_by_stage`
        returns the name of a layer's operation on each stage of a pipeline, or None if the
        operation has the same name on all stages.
        """
        super().__init__(layout.mesh_shape, layout.mtf_rules)
        self.layout = layout
        self.collectives = collectives
        self.variable_slices = variable_slices
        self.target = target
        self.computes = computes
        self._pnum = pnum
        self._step = step
        self._seed = seed
        self._names_by_stage = names_by_stage
        self._once = GraphMemo()
        self._part_of: dict[str, tuple[int, int]] = {}

    @property
    def shape(self) -> upstream.Shape:
        """The axes by index, first single axes of the mesh, then joint ones (`t2tp.mesh.axes`)."""
        return self.layout.axes.shape

    @property
    def size(self) -> int:
        """Number of processors."""
        return self.layout.size

    def tensor_dimension_to_mesh_axis(self, tensor_dimension: upstream.Dimension) -> int | None:
        """Returns the index of the axis (single or joint) that splits a dimension, or None.

        The result is None also for an axis of size 1. Such an axis may therefore split dimensions
        that an operation needs whole.
        """
        return self.layout.axis_index(tensor_dimension.name)

    def axes_of(self, dims: Iterable[upstream.Dimension]) -> list[int]:
        """Returns the indices of the axes (single or joint) that split these dimensions, sorted."""
        indices = {self.layout.axis_index(dim.name) for dim in dims}
        return sorted(index for index in indices if index is not None)

    def tensor_layout(self, arg: upstream.Tensor | upstream.Shape) -> upstream.TensorLayout:
        """Returns the axis that splits each dimension of a tensor or shape."""
        shape = arg.shape if isinstance(arg, upstream.Tensor) else arg
        return upstream.TensorLayout([self.layout.axis_index(dim.name) for dim in shape.dims])

    def slicewise(self, fn: Callable, *inputs: object) -> LaidOutTensor | tuple[LaidOutTensor, ...]:
        """Applies `fn` to the processor's slices of the inputs."""
        slices = [
            x.slice if isinstance(x, LaidOutTensor) else x
            for x in upstream.convert_args_to_laid_out_tensors(inputs)
        ]
        result = fn(*slices)
        if isinstance(result, tuple):
            return tuple(LaidOutTensor([r]) for r in result)
        if isinstance(result, tf.Variable):
            # A cast to the same dtype returns the variable itself. Its value must be read before a
            # later assignment changes the variable.
            result = result.value()
        return LaidOutTensor([result])

    def einsum(self, equation: str, *slices: tf.Tensor) -> tf.Tensor:
        """Multiplies slices and sums over the dimensions that the result lacks.

        Raises:
          MemoryError: the result is larger than the memory of a device.
        """
        if self.layout.exact_sums:
            result = matmul.einsum_of_any_slice(equation, *slices)
        else:
            widen = self._widened if self.target.on_cpu else None
            result = matmul.einsum(equation, *slices, widen=widen)
        num_bytes = math.prod(result.shape.as_list()) * result.dtype.size
        if num_bytes > self.target.memory:
            raise MemoryError(
                f"a product {result.shape.as_list()} has {num_bytes / 1e9:,.1f} GB, and this"
                f" machine has {self.target.memory / 1e9:,.1f} GB of memory for each device: use a"
                " smaller batch, or more microbatches"
            )
        return result

    def _widened(self, x: tf.Tensor) -> tf.Tensor:
        """Converts to float32, once for all uses: for example, q, k and v use the same tensor."""
        return self._once(("float32", x.ref()), lambda: tf.cast(x, tf.float32))

    def allreduce(
        self, x: LaidOutTensor, mesh_axes: Sequence[int], reduction_fn_string: str
    ) -> LaidOutTensor:
        """Reduces over the group along `mesh_axes` (`SUM`, `MAX` or `MIN`)."""
        merge_op = _MERGE_OPS[reduction_fn_string]
        part = x.to_laid_out_tensor().slice
        return LaidOutTensor([self.collectives.allreduce(part, mesh_axes, merge_op)])

    def allconcat(self, x: LaidOutTensor, mesh_axis: int, concat_axis: int) -> LaidOutTensor:
        """Gathers and concatenates along dimension `concat_axis`, which may count from the end."""
        part = x.to_laid_out_tensor().slice
        concat_axis %= part.shape.rank
        return LaidOutTensor([self.collectives.allgather(part, mesh_axis, concat_axis)])

    def alltoall(
        self, x: LaidOutTensor, mesh_axis: int, split_axis: int, concat_axis: int
    ) -> LaidOutTensor:
        """Gathers dimension `concat_axis` and splits `split_axis`; both may count from the end."""
        part = x.to_laid_out_tensor().slice
        axes = [axis % part.shape.rank for axis in (split_axis, concat_axis)]
        return LaidOutTensor([self.collectives.alltoall(part, mesh_axis, *axes)])

    def receive(
        self, x: LaidOutTensor, mesh_axis: int, source_pcoord: Sequence[int | None]
    ) -> LaidOutTensor:
        """Receives the slice of the processor at coordinate `source_pcoord[own coordinate]`."""
        part = x.to_laid_out_tensor().slice
        return LaidOutTensor([self.collectives.permute(part, mesh_axis, source_pcoord)])

    def slice_shape(self, tensor_shape: upstream.Shape) -> list[int]:
        """Returns the shape of a slice, with its padding."""
        return list(self.layout.slice_size(tensor_shape))

    def masked(
        self,
        x: tf.Tensor,
        shape: upstream.Shape,
        dims: Collection[upstream.Dimension] | None = None,
        value: complex = 0,
    ) -> tf.Tensor:
        """Replaces the padding of a slice, so that it does not change a sum or a maximum.

        `value` is the neutral element of the reduction over `dims` (default: all dimensions).
        """
        for i, dim in enumerate(shape.dims):
            if self.layout.is_padded(dim) and (dims is None or dim in dims):
                positions = functools.partial(self._positions, dim, is_head_tail=False)
                is_real = self._once(("positions", dim), positions) < dim.size
                along = [-1 if j == i else 1 for j in range(shape.ndims)]
                x = tf.where(tf.reshape(is_real, along), x, tf.constant(value, x.dtype))
        return x

    def laid_out_pnum(self) -> LaidOutTensor:
        """Returns the processor's number, an int32 scalar."""
        return LaidOutTensor([self._pnum])

    def laid_out_pcoord(self, mesh_axis: int) -> LaidOutTensor:
        """Returns the processor's coordinate on an axis, an int32 scalar."""
        return LaidOutTensor([self.collectives.coordinate(mesh_axis)])

    def of_part(self, name: str, number: int, count: int) -> SpmdMeshImpl:
        """Returns a copy that lowers operations for one part of the processor's slice.

        The slice is cut into `count` equal parts along the dimension called `name`. `number` is the
        index of the part.
        """
        part = self.with_layout(self.layout.of_part(name, count))
        part._part_of = {**self._part_of, name: (number, count)}
        return part

    def with_layout(self, layout: Layout) -> SpmdMeshImpl:
        """Returns a copy with another layout."""
        other = copy.copy(self)
        other.layout = layout
        other._once = GraphMemo()
        return other

    def _place(self, dim: upstream.Dimension) -> tf.Tensor | int:
        """Returns the index of this processor's slice, or part (`of_part`), along a dimension."""
        axis = self.tensor_dimension_to_mesh_axis(dim)
        place = 0 if axis is None else self.collectives.coordinate(axis)
        if dim.name not in self._part_of:
            return place
        number, count = self._part_of[dim.name]
        return place * count + number

    def slice_begin_tensors(self, shape: upstream.Shape) -> list[tf.Tensor | int]:
        """Returns where this processor's slice begins: an int or int32 scalar per dimension."""
        sizes = self.slice_shape(shape)
        return [self._place(dim) * size for dim, size in zip(shape.dims, sizes, strict=True)]

    def element_index(
        self, shape: upstream.Shape, microbatch: Microbatch | None = None
    ) -> tf.Tensor:
        """Returns, for each element of a slice, its row-major index in the full batch (uint64)."""
        return random.sum_of_offsets(self._offsets(shape, microbatch, frozenset()))

    def _offsets(
        self, shape: upstream.Shape, microbatch: Microbatch | None, head_tail: Set[int]
    ) -> list[tf.Tensor]:
        """Returns the addends of an element's index, one for each dimension."""
        sizes = shape.to_integer_list
        if microbatch is not None:
            sizes = [microbatch.whole_size(dim) for dim in shape.dims]
        part = microbatch and (microbatch.number.ref(), microbatch.count)
        splits = self.tensor_layout(shape)

        def offsets(axis: int) -> tf.Tensor:
            dim = shape.dims[axis]
            along = self._positions(dim, is_head_tail=splits[axis] in head_tail)
            if microbatch is not None:
                along = microbatch.whole_index(dim, along)
            return random.offsets(sizes, axis, along)

        # Memoized, because many tensors share a dimension, and its offsets are a small tensor.
        return [
            self._once(
                ("offsets", dim, splits[axis] in head_tail, *sizes[axis + 1 :], part),
                functools.partial(offsets, axis),
            )
            for axis, dim in enumerate(shape.dims)
        ]

    def _positions(self, dim: upstream.Dimension, is_head_tail: bool) -> tf.Tensor:
        """Returns the global positions of the slice's elements along one dimension, int32."""
        axis = self.tensor_dimension_to_mesh_axis(dim)
        if axis is None:
            return tf.range(dim.size, dtype=tf.int32)
        count, place = self.shape[axis].size, self.collectives.coordinate(axis)
        size = -(-dim.size // count)
        if not is_head_tail:
            return place * size + tf.range(size, dtype=tf.int32)
        half = tf.range(size // 2, dtype=tf.int32)
        parts = head_and_tail(place, count)
        return tf.concat([part * (size // 2) + half for part in parts], 0)

    def counter(
        self,
        shape: upstream.Shape,
        microbatch: Microbatch | None,
        head_tail: Set[int],
        rng_dependency: tf.Tensor | None,
    ) -> list[tf.Tensor]:
        """Returns addends (uint64) of the counter of each element of a slice, for random numbers.

        They are the same for an element on every mesh, and in a microbatch and the full batch.

        Args:
          shape: the global shape.
          microbatch: the microbatch of the tensor, if any.
          head_tail: the axes along which the slice is in head-tail order.
          rng_dependency: a zero that must be computed before the numbers are generated.
        """
        offsets = self._offsets(shape, microbatch, head_tail)
        outer, inner = offsets[:1], offsets[1:]

        def first() -> tf.Tensor:
            step = self._step
            if rng_dependency is not None:
                step += tf.cast(rng_dependency, step.dtype)
            return random.sum_of_offsets([*outer, random.first_counter(step)])

        keys = [x.ref() for x in offsets]
        # With a dependency the value is not memoized: it must be computed after the dependency.
        part = first() if rng_dependency is not None else self._once(("first", *keys[:1]), first)
        rest = functools.partial(random.sum_of_offsets, inner)
        return [part, self._once(("sum of offsets", *keys[1:]), rest)] if inner else [part]

    def random_key(self, name: str) -> int | tf.Tensor:
        """Returns the key of an operation's random bits; each stage uses its own layer's name."""
        names = self._names_by_stage(name)
        stages = self.layout.stage_axis
        if names is None or stages is None:
            return random.make_key(self._seed, "operation", name)
        keys = [random.make_key(self._seed, "operation", own) for own in names]
        constants = tf.constant(np.array(keys, np.uint64))
        return tf.gather(constants, self.collectives.coordinate(stages))

    def import_tf_tensor(self, x: upstream.Tensor, tf_x: tf.Tensor) -> LaidOutTensor:
        """Takes this processor's slice of a tensor that every processor has in full."""
        tf_x = tf.convert_to_tensor(tf_x)
        if not self.layout.is_split(x.shape):
            return LaidOutTensor([tf_x])
        begin, size = self.slice_begin_tensors(x.shape), self.slice_shape(x.shape)
        slices = [self.layout.num_slices(dim.name) for dim in x.shape.dims]
        padded = [n * count for n, count in zip(size, slices, strict=True)]
        return LaidOutTensor([tf.slice(resized(tf_x, padded), begin, size)])


# mesh-tensorflow reads these classes as attributes of the mesh.
SpmdMeshImpl.LaidOutTensor = LaidOutTensor
SpmdMeshImpl.LaidOutVariable = LaidOutVariable
# mesh-tensorflow's own version adds a TensorFlow node for each dimension.
upstream.ops._expand_dims = expanded
