"""Collectives of a processor within its groups along mesh axes.

A group consists of the processors that differ only in their coordinates on some axes. The
collectives are TensorFlow's: NCCL's if each processor has a separate GPU, else rings, and gRPC
between processes. The program is the same on all processors: a processor's group is computed from
its number `pnum`, which is an argument of the program.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

from t2tp import upstream
from t2tp.mesh import layout
from t2tp.mesh.pairing import pairings

# TensorFlow finds the members of a collective by two numbers. A group key names a set of devices
# for the life of the process: with other devices under the same key the runtime fails, so that each
# mesh has keys of its own. An instance key names a collective; two that are under way at the same
# time under one key would be taken for one. All processes must choose the same numbers without
# talking to each other. They do because they count in the order of tracing, and trace the same
# programs in the same order.
_group_keys = itertools.count(1)
_instance_keys = itertools.count(1)
_axes_keys: dict[tuple, int] = {}
_pair_keys: dict[tuple, int] = {}

# For each processor of the mesh, the members of its group, in their order.
Groups: TypeAlias = "Sequence[Sequence[int]]"


@dataclass(frozen=True)
class Collective:
    """One collective operation of a program.

    Attributes:
      kind: `allreduce`, `reducescatter`, `allgather`, `alltoall`, `permute` or `broadcast`.
      axes: names of the mesh axes that it runs over.
      group_size: number of processors in a group.
      bytes: size of the slice that each processor puts in.
      name: TensorFlow's name of the place that asked for it.
      operation: the mtf operation that asked for it; empty for an output of the program.
      sums: names of the tensors that it completes, if it reduces deferred sums.
      times: how often a step runs it; 1 in a loop whose length is known only when it runs.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    bytes: int
    name: str
    operation: str = ""
    sums: tuple[str, ...] = ()
    times: int = 1


def summarize(
    collectives: Sequence[Collective],
) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """Adds collectives up: (kind, axes) -> (how many, bytes put in by each processor)."""
    count: Counter = Counter()
    size: Counter = Counter()
    for c in collectives:
        count[c.kind, c.axes] += c.times
        size[c.kind, c.axes] += c.bytes * c.times
    return {key: (count[key], size[key]) for key in count}


@dataclass(frozen=True)
class _Group:
    """Processors that meet in a collective.

    Attributes:
      key: its number, an int32 scalar, in the program of one of them.
      members: the groups of all processors.
    """

    key: tf.Tensor
    members: Groups


class Collectives:
    """Emits the collectives of one processor into the current TensorFlow graph.

    Attributes:
      log: the collectives emitted so far.
      groups: those of the collectives, by the instance keys of TensorFlow's operations.
    """

    def __init__(
        self,
        mesh_shape: upstream.Shape,
        devices: Sequence[str],
        pnum: tf.Tensor,
        nccl: bool = False,
    ) -> None:
        """Makes the collectives of a processor.

        Args:
          mesh_shape: of the mesh.
          devices: that the mesh is bound to.
          pnum: the number of the processor, an int32 scalar.
          nccl: whether NCCL carries them; otherwise rings do.
        """
        self._mesh_shape = mesh_shape
        self._devices = tuple(devices)
        self._pnum = pnum
        self._nccl = nccl
        # TensorFlow would take rings on the GPUs of a single process.
        self._hint = "nccl" if nccl else "auto"
        # By graph too: a tensor made inside a loop's body is of no use outside of it.
        self._groups: dict[tuple[tf.Graph, tuple[int, ...]], _Group] = {}
        self._operation = ""
        self._times = 1
        self.log: list[Collective] = []
        self.groups: dict[int, Groups] = {}

    @contextlib.contextmanager
    def attributed_to(self, operation: str) -> Iterator[None]:
        """While this is active, collectives are logged as those of an mtf operation."""
        before, self._operation = self._operation, operation
        try:
            yield
        finally:
            self._operation = before

    @contextlib.contextmanager
    def repeated(self, times: int) -> Iterator[None]:
        """While this is active, collectives are those of a loop's body that runs `times` times."""
        before = self._times
        self._times *= times
        try:
            yield
        finally:
            self._times = before

    def coordinate(self, axis: int) -> tf.Tensor:
        """The processor's place along a mesh axis: an int32 scalar."""
        return self._pnum // self._stride(axis) % self._mesh_shape.dims[axis].size

    def allreduce(
        self, x: tf.Tensor, axes: Sequence[int], merge_op: str, sums: Sequence[str] = ()
    ) -> tf.Tensor:
        """Sum (`Add`), `Max` or `Min` of `x` over the group; `sums` names the tensors in it."""
        axes = self._real_axes(axes)
        if not axes:
            return x
        if x.dtype.is_complex:
            if merge_op != "Add":
                raise ValueError(f"{x.dtype.name} tensors have a sum, but no {merge_op.lower()}.")
            return _carried(lambda c: self.allreduce(c, axes, merge_op, sums), x)
        if x.dtype == tf.uint64:
            return _as_int64(lambda c: self.allreduce(c, axes, merge_op, sums), x, merge_op)
        reduced_as = _reduced_as(x.dtype)
        if reduced_as != x.dtype:
            wide = tf.cast(x, reduced_as)
            return tf.cast(self.allreduce(wide, axes, merge_op, sums), x.dtype)
        self._record("allreduce", axes, x, sums)
        return self._reduce(x, axes, merge_op)

    def allgather(self, x: tf.Tensor, axis: int, concat_axis: int) -> tf.Tensor:
        """Concatenation of the group's `x` along `concat_axis`, in the order of the mesh axis."""
        if not self._real_axes([axis]):
            return x
        if _carrier(x.dtype) != x.dtype:
            return _carried(lambda c: self.allgather(c, axis, concat_axis), x)
        return _merge_leading(self._each_to_all(x, (axis,)), concat_axis)

    def gather_members(self, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        """Gathers `x` from the group along some axes: [member, ...], in the same order on each."""
        axes = self._real_axes(axes)
        return self._each_to_all(x, axes) if axes else x[None]

    def alltoall(self, x: tf.Tensor, axis: int, split_axis: int, concat_axis: int) -> tf.Tensor:
        """Splits `x` along `split_axis`, sends slice i to member i, joins along `concat_axis`."""
        if not self._real_axes([axis]):
            return x
        if _carrier(x.dtype) != x.dtype:
            return _carried(lambda c: self.alltoall(c, axis, split_axis, concat_axis), x)
        self._record("alltoall", (axis,), x)
        parts = _split_leading(x, self._mesh_shape.dims[axis].size, split_axis)
        return _merge_leading(self._send_parts(parts, axis), concat_axis)

    def reducescatter(
        self, x: tf.Tensor, axis: int, scatter_axis: int, sums: Sequence[str] = ()
    ) -> tf.Tensor:
        """Sums the group's `x`; member i gets slice i along `scatter_axis`.

        `sums` names the tensor.
        """
        if not self._real_axes([axis]):
            return x
        if x.dtype.is_complex:
            return _carried(lambda c: self.reducescatter(c, axis, scatter_axis, sums), x)
        self._record("reducescatter", (axis,), x, sums)
        parts = _split_leading(x, self._mesh_shape.dims[axis].size, scatter_axis)
        if self._nccl:
            part = self._emit(
                tf.raw_ops.CollectiveReduceScatterV2,
                parts,
                self._group((axis,)),
                merge_op="Add",
                final_op="Id",
            )
            return tf.reshape(part, parts.shape[1:])
        # Only NCCL has such a kernel. Elsewhere parts are sent to where they belong, and added up.
        carried = tf.float32 if x.dtype == tf.bfloat16 else x.dtype
        arrived = self._send_parts(tf.cast(parts, carried), axis)
        return tf.cast(tf.reduce_sum(arrived, axis=0), x.dtype)

    def permute(self, x: tf.Tensor, axis: int, source: Sequence[int | None]) -> tf.Tensor:
        """Returns the `x` of another member: for member k that of `source[k]`, or zeros if None."""
        size = self._mesh_shape.dims[axis].size
        if list(source) == list(range(size)):
            return x
        if source[0] is not None and len(set(source)) == 1:
            return self._broadcast(x, axis, source[0])
        if _carrier(x.dtype) != x.dtype:
            return _carried(lambda c: self.permute(c, axis, source), x)
        place = self.coordinate(axis)
        wanted = tf.gather(tf.constant([-1 if s is None else s for s in source], tf.int32), place)
        rounds = pairings(source)
        result = tf.where(tf.equal(wanted, place), x, tf.zeros_like(x))
        if rounds is None:
            arrived = self._each_to_all(x, (axis,))
            own = tf.gather(arrived, tf.maximum(wanted, 0))
            return tf.where(wanted < 0, tf.zeros_like(x), own)
        for partners in rounds:
            theirs = self._exchange(x, axis, place, partners)
            is_wanted = [s == partner for s, partner in zip(source, partners, strict=True)]
            result = tf.where(tf.gather(tf.constant(is_wanted), place), theirs, result)
        return result

    def _broadcast(self, x: tf.Tensor, axis: int, source: int) -> tf.Tensor:
        """The `x` of one member: the others add zeros to it, as integers, which keeps every bit."""
        if x.dtype.is_floating:
            bits = {2: tf.uint16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
            return tf.bitcast(self._broadcast(tf.bitcast(x, bits), axis, source), x.dtype)
        if _carrier(x.dtype) != x.dtype:
            return _carried(lambda c: self._broadcast(c, axis, source), x)
        self._record("broadcast", (axis,), x)
        own = tf.where(tf.equal(self.coordinate(axis), source), x, tf.zeros_like(x))
        return self._reduce(own, (axis,), "Add")

    def _reduce(self, x: tf.Tensor, axes: tuple[int, ...], merge_op: str) -> tf.Tensor:
        group = self._group(axes)
        return self._emit(tf.raw_ops.CollectiveReduceV2, x, group, merge_op=merge_op, final_op="Id")

    def _send_parts(self, parts: tf.Tensor, axis: int) -> tf.Tensor:
        """Sends part i of [member, ...] to member i; what came, by sender [member, ...]."""
        exchanged = self._emit(tf.raw_ops.CollectiveAllToAllV2, parts, self._group((axis,)))
        return tf.ensure_shape(exchanged, parts.shape)

    def _exchange(
        self, x: tf.Tensor, axis: int, place: tf.Tensor, partners: Sequence[int]
    ) -> tf.Tensor:
        """The `x` of a partner, which gets this one's; `partners` names that of each member."""
        self._record("permute", (axis,), x)
        partner = tf.gather(tf.constant(partners, tf.int32), place)
        pair = self._pair(axis, partner - place, partners)
        both = self._emit(tf.raw_ops.CollectiveGatherV2, x[None], pair)
        both = tf.ensure_shape(both, [2, *x.shape])
        return tf.gather(both, tf.cast(place < partner, tf.int32))

    def _each_to_all(self, x: tf.Tensor, axes: tuple[int, ...]) -> tf.Tensor:
        """The `x` of all members [member, ...]."""
        self._record("allgather", axes, x)
        gathered = self._emit(tf.raw_ops.CollectiveGatherV2, x[None], self._group(axes))
        size = math.prod(self._mesh_shape.dims[axis].size for axis in axes)
        return tf.ensure_shape(gathered, [size, *x.shape])

    def _emit(
        self, raw_op: Callable[..., tf.Tensor], x: tf.Tensor, group: _Group, **merging: str
    ) -> tf.Tensor:
        """One of TensorFlow's operations, on `x` of all members of the group."""
        instance = next(_instance_keys)
        self.groups[instance] = group.members
        return raw_op(
            input=x,
            group_size=len(group.members[0]),
            group_key=group.key,
            instance_key=instance,
            ordering_token=[],
            communication_hint=self._hint,
            **merging,
        )

    def _stride(self, axis: int) -> int:
        """The distance in number of two neighbours along an axis."""
        return math.prod(self._mesh_shape.to_integer_list[axis + 1 :])

    def _pair(self, axis: int, distance: tf.Tensor, partners: Sequence[int]) -> _Group:
        """The group of this processor and the one at a distance along an axis."""
        count = len(self._devices)
        if self._devices not in _pair_keys:
            # One key for each pair (low, high) of devices: key + low * count + high. Which pair it
            # is depends on `pnum`, an argument of the program, so that the key is computed, too.
            _pair_keys[self._devices] = next(_group_keys)
            for _ in range(count * count):
                next(_group_keys)
        partner = self._pnum + distance * self._stride(axis)
        low, high = tf.minimum(self._pnum, partner), tf.maximum(self._pnum, partner)
        members = []
        for pnum in range(count):
            place = pnum // self._stride(axis) % self._mesh_shape.dims[axis].size
            other = pnum + (partners[place] - place) * self._stride(axis)
            members.append(sorted((pnum, other)))
        return _Group(_pair_keys[self._devices] + low * count + high, members)

    def _real_axes(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Drops axes of size one: nothing moves along them."""
        return tuple(sorted(a for a in axes if self._mesh_shape.dims[a].size > 1))

    def _group(self, axes: tuple[int, ...]) -> _Group:
        """The group along `axes`."""
        where = (tf.compat.v1.get_default_graph(), axes)
        if where not in self._groups:
            sizes = self._mesh_shape.to_integer_list
            identity = (self._devices, tuple(sizes), axes)
            if identity not in _axes_keys:
                # One key for each group: key + the group's number, which is the row-major index of
                # its coordinates on the other axes, computed from `pnum`.
                _axes_keys[identity] = next(_group_keys)
                for _ in range(len(self._devices)):
                    next(_group_keys)
            group = tf.constant(0, tf.int32)
            for axis, size in enumerate(sizes):
                if axis not in axes:
                    group = group * size + self.coordinate(axis)
            names = [self._mesh_shape.dims[axis].name for axis in axes]
            members = layout.groups(self._mesh_shape, names)
            self._groups[where] = _Group(group + _axes_keys[identity], members)
        return self._groups[where]

    def _record(
        self, kind: str, axes: tuple[int, ...], x: tf.Tensor, sums: Sequence[str] = ()
    ) -> None:
        names = tuple(self._mesh_shape.dims[a].name for a in axes)
        size = math.prod(self._mesh_shape.dims[a].size for a in axes)
        num_bytes = math.prod(x.shape.as_list()) * x.dtype.size
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        self.log.append(
            Collective(
                kind, names, size, num_bytes, scope, self._operation, tuple(sums), self._times
            )
        )


def _carrier(dtype: tf.DType) -> tf.DType:
    """The dtype as which TensorFlow's collectives can move a dtype, bit for bit."""
    if dtype in (tf.float32, tf.float16, tf.float64, tf.int32, tf.int64):
        return dtype
    if dtype in (tf.uint32, tf.uint64):
        return tf.int32 if dtype == tf.uint32 else tf.int64
    if dtype in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16):
        return tf.int32
    if dtype == tf.bfloat16:
        return tf.float16
    if dtype.is_complex:
        return dtype.real_dtype
    raise ValueError(f"Tensors of dtype {dtype.name} cannot be moved between processors.")


def _reduced_as(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which TensorFlow's collectives reduce one that they do not support.

    A sum that overflows keeps the same low bits.
    """
    if dtype in (tf.int8, tf.uint8, tf.int16, tf.uint16):
        return tf.int32
    return tf.int64 if dtype == tf.uint32 else dtype


def _as_int64(reduce: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, merge_op: str) -> tf.Tensor:
    """Reduces uint64 as int64: sums have the same bits; for the others, the order is kept."""
    highest_bit = tf.constant(0 if merge_op == "Add" else 1 << 63, tf.uint64)
    reduced = reduce(tf.bitcast(tf.bitwise.bitwise_xor(x, highest_bit), tf.int64))
    return tf.bitwise.bitwise_xor(tf.bitcast(reduced, tf.uint64), highest_bit)


def _carried(move: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Moves a tensor as one of its carrier dtype.

    A complex tensor [...] is moved as its real and imaginary parts [..., 2].
    """
    carrier = _carrier(x.dtype)
    if carrier.size == x.dtype.size or x.dtype.is_complex:
        return tf.bitcast(move(tf.bitcast(x, carrier)), x.dtype)
    return tf.cast(move(tf.cast(x, carrier)), x.dtype)


def _split_leading(x: tf.Tensor, parts: int, axis: int) -> tf.Tensor:
    """[..., parts * d, ...] -> [parts, ..., d, ...], where parts * d is dimension `axis`."""
    shape = x.shape.as_list()
    cut = tf.reshape(x, [*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]])
    return tf.transpose(cut, [axis, *range(axis), *range(axis + 1, len(shape) + 1)])


def _merge_leading(x: tf.Tensor, axis: int) -> tf.Tensor:
    """[n, ..., d, ...] -> [..., n * d, ...], where d is dimension `axis` of the result."""
    shape = x.shape.as_list()
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    merged = shape[1:]
    merged[axis] *= shape[0]
    return tf.reshape(tf.transpose(x, order), merged)
