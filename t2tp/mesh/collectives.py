"""Collectives of a processor within its groups along mesh axes.

A group consists of the processors that differ only in their coordinates on some axes. The
collectives are TensorFlow's. If each processor has a separate GPU, they use NCCL; otherwise they
use rings, with gRPC between processes. All processors run the same program, which computes the
processor's group from its number `pnum`, an argument of the program.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from t2tp.mesh import collective_kinds
from t2tp.mesh.axes import MeshAxes
from t2tp.mesh.carriers import as_int64, carried, carrier_of, reduced_as
from t2tp.mesh.collective_log import Collective
from t2tp.mesh.graph_memo import GraphMemo
from t2tp.mesh.layout_text import LayoutError
from t2tp.mesh.set_temporarily import set_temporarily
from t2tp.mesh.wire import Wire

# A tensor of at least this many elements may be summed in parts: each member sums one part.
_LARGE = 1 << 14


# TensorFlow matches the members of a collective by two numbers. All processes must choose the same
# numbers without communicating. They do, because each process takes consecutive numbers, and all
# processes trace the same programs in the same order.
#   The group key names a set of devices for the life of the process. The runtime fails if the same
#   key comes with other devices, so each mesh has its own keys. For each set of axes, a mesh
#   reserves one key per device, because there are never more groups than devices. For `model` on
#   `data:2;model:4`, it reserves 8 keys and uses 2 of them, because there are 2 groups. The key of
#   a processor's group is the first of the 8 keys plus the group's number, here `pnum // 4`.
#   The instance key names a collective. TensorFlow would mix up two collectives that run at the
#   same time under one key.
_instance_keys = itertools.count(1)
_group_keys: dict[tuple, range] = {}


def _first_key(identity: tuple, count: int) -> int:
    """Returns the first of the `count` group keys reserved for some devices and axes."""
    if identity not in _group_keys:
        first = max((keys.stop for keys in _group_keys.values()), default=1)
        _group_keys[identity] = range(first, first + count)
    return _group_keys[identity].start


def head_and_tail(place: int | tf.Tensor, count: int) -> tuple:
    """Returns the indices of the two parts that form a slice in head-tail order.

    `count` processors split the dimension, which is cut into 2 * count parts. `place` is the
    processor's coordinate. See `t2tp.lowering.head_tail`.
    """
    return 2 * place, 2 * (count - 1 - place) + 1


class Collectives:
    """Emits the collectives of one processor into the current TensorFlow graph.

    Attributes:
      log: the collectives emitted so far.
      exact: whether floats must be added in a fixed order. The order of `allreduce` is not fixed,
        so it then refuses to add floats.
      on_gpus: whether the devices are GPUs, on which TensorFlow reduces fewer dtypes.
    """

    def __init__(
        self,
        axes: MeshAxes,
        devices: Sequence[str],
        pnum: tf.Tensor,
        nccl: bool = False,
        exact: bool = False,
    ) -> None:
        """Initializes the collectives of processor `pnum`, an int32 scalar.

        With `nccl`, NCCL runs the collectives; otherwise TensorFlow's rings do.
        """
        self.exact = exact
        self.on_gpus = "GPU" in devices[0]
        self._axes = axes
        self._devices = tuple(devices)
        self._pnum = pnum
        self._nccl = nccl
        # "auto" would choose rings on the GPUs of a single process.
        self._hint = "nccl" if nccl else "auto"
        self._keys = GraphMemo()
        self._operation = ""
        self._times = 1
        self.log: list[Collective] = []

    def attributed_to(self, operation: str) -> contextlib.AbstractContextManager[None]:
        """Logs the collectives inside the context as belonging to an mtf operation."""
        return set_temporarily(self, _operation=operation)

    def repeated(self, times: int) -> contextlib.AbstractContextManager[None]:
        """Logs each collective inside the context as executed `times` times, as in a loop."""
        return set_temporarily(self, _times=self._times * times)

    def coordinate(self, axis: int) -> tf.Tensor:
        """Returns the processor's coordinate on an axis, an int32 scalar."""
        return self._axes.coordinate(axis, self._pnum)

    def allreduce(
        self, x: tf.Tensor, axes: Sequence[int], merge_op: str, sums: Sequence[str] = ()
    ) -> tf.Tensor:
        """Reduces `x` over the group with `Add`, `Max` or `Min`.

        `sums` are the names of the tensors that are concatenated in `x`, for the log.
        """
        axes = sorted(self._real_axes(axes))
        if not axes:
            return x
        if x.dtype.is_complex:
            if merge_op != "Add":
                raise ValueError(f"{x.dtype.name} tensors have a sum, but no {merge_op.lower()}.")
            return carried(lambda c: self.allreduce(c, axes, merge_op, sums), x)
        if x.dtype == tf.uint64:
            return as_int64(lambda c: self.allreduce(c, axes, merge_op, sums), x, merge_op)
        wide_dtype = reduced_as(x.dtype)
        if wide_dtype != x.dtype:
            wide = tf.cast(x, wide_dtype)
            return tf.cast(self.allreduce(wide, axes, merge_op, sums), x.dtype)
        if self.exact and merge_op == "Add" and x.dtype.is_floating:
            raise LayoutError(
                f"{self._operation} adds up floats over mesh axes {', '.join(self._names(axes))} in"
                " no fixed order: drop the rules that name these axes, or set exact_sums=0."
            )
        is_large = math.prod(x.shape.as_list()) >= _LARGE
        if self.on_gpus and x.dtype == tf.bfloat16 and merge_op == "Add" and is_large:
            return self._sum_in_parts(x, axes, sums)  # half the traffic of float32
        self.record(collective_kinds.ALL_REDUCE, axes, x, sums)
        return self._reduce(x, axes, merge_op)

    def sum(self, x: tf.Tensor, axes: Sequence[int], sums: Sequence[str] = ()) -> tf.Tensor:
        """Sums floats over the group.

        With `exact`, they are added as a binary tree, in the order of the members. If `x` is small,
        each member gathers the `x` of all members and sums them. If `x` is large, it is cut into
        parts, and each member sums one part of all members' `x`.
        """
        axes = sorted(self._real_axes(axes))
        if not self.exact or not axes:
            return self.allreduce(x, axes, "Add", sums)
        if math.prod(x.shape.as_list()) < _LARGE:
            return tree_sum(tf.unstack(self.gather_members(x, axes)))
        return self._sum_in_parts(x, axes, sums)

    def allgather(self, x: tf.Tensor, axis: int, concat_axis: int) -> tf.Tensor:
        """Concatenates the group's `x` along `concat_axis`, in the order of the mesh axis."""
        if not self._real_axes([axis]):
            return x
        return _merge_leading(self.gather_members(x, [axis]), concat_axis)

    def alltoall(self, x: tf.Tensor, axis: int, split_axis: int, concat_axis: int) -> tf.Tensor:
        """Splits `x` along dimension `split_axis`; part i of each member's `x` goes to member i.

        The received parts are concatenated along dimension `concat_axis`.
        """
        if not self._real_axes([axis]):
            return x
        parts = _split_leading(x, self._axes.size(axis), split_axis)
        exchanged = self.exchange(self._by_axis(parts, axis), [axis])
        return _merge_leading(tf.reshape(exchanged, parts.shape), concat_axis)

    def reducescatter(self, x: tf.Tensor, axis: int, scatter_axis: int) -> tf.Tensor:
        """Sums the group's `x`; member i gets slice i along `scatter_axis`."""
        if not self._real_axes([axis]):
            return x
        parts = _split_leading(x, self._axes.size(axis), scatter_axis)
        return self.reduce_parts(self._by_axis(parts, axis), [axis])

    def gather_members(self, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        """Gathers `x` from the group along some axes: [member, ...], in the order of the axes."""
        axes = self._real_axes(axes)
        return tf.reshape(self.gather(x, axes), [-1, *x.shape]) if axes else x[None]

    def gather(self, x: tf.Tensor, axes: Sequence[int], names: Sequence[str] = ()) -> tf.Tensor:
        """Gathers `x` from the group: [coordinate on each axis..., *x.shape].

        If one of `axes` is a joint axis, the result has a dimension for each mesh axis in it.
        `names` are the names of the tensors that are concatenated in `x`, for the log.
        """
        axes = self._real_axes(axes)
        if carrier_of(x.dtype) != x.dtype:
            return carried(lambda c: self.gather(c, axes, names), x)
        self.record(collective_kinds.ALL_GATHER, sorted(axes), x, names)
        gathered = self._emit(tf.raw_ops.CollectiveGatherV2, x[None], self._group(sorted(axes)))
        gathered = tf.ensure_shape(gathered, [self._size(axes), *x.shape])
        return self._in_order_of(axes, gathered)

    def exchange(self, parts: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        """Sends one part to each member of the group along some axes: an all-to-all.

        `parts` is [receiver's coordinate on each axis..., part...] (see `gather`). The result has
        the received parts, by sender, in the same shape.
        """
        axes = self._real_axes(axes)
        if carrier_of(parts.dtype) != parts.dtype:
            return carried(lambda c: self.exchange(c, axes), parts)
        by_member = self._by_member(axes, parts)
        self.record(collective_kinds.ALL_TO_ALL, sorted(axes), parts)
        return self._in_order_of(axes, self._send_parts(by_member, axes))

    def reduce_parts(
        self, parts: tf.Tensor, axes: Sequence[int], sums: Sequence[str] = ()
    ) -> tf.Tensor:
        """Sums the group's tensors; each member gets its part: a reduce-scatter.

        `parts` is [receiver's coordinate on each axis..., part...] (see `gather`). `sums` are the
        names of the summed tensors.
        """
        axes = self._real_axes(axes)
        if parts.dtype.is_complex:
            return carried(lambda c: self.reduce_parts(c, axes, sums), parts)
        by_member = self._by_member(axes, parts)
        self.record(collective_kinds.REDUCE_SCATTER, sorted(axes), parts, sums)
        if self._nccl and parts.dtype != tf.bfloat16:
            part = self._emit(
                tf.raw_ops.CollectiveReduceScatterV2,
                by_member,
                self._group(sorted(axes)),
                merge_op="Add",
                final_op="Id",
            )
            return tf.reshape(part, by_member.shape[1:])
        # Only NCCL has a reduce-scatter kernel, and TensorFlow's operation for this kernel does not
        # accept bfloat16. In all other cases, members exchange parts and add them up.
        if parts.dtype == tf.bfloat16:
            arrived = carried(lambda c: self._send_parts(c, axes), by_member)
            arrived = tf.cast(arrived, tf.float32)
        else:
            arrived = self._send_parts(by_member, axes)
        total = tree_sum(tf.unstack(arrived)) if self.exact else tf.reduce_sum(arrived, axis=0)
        return tf.cast(total, parts.dtype)

    def permute(self, x: tf.Tensor, axis: int, source: Sequence[int | None]) -> tf.Tensor:
        """Returns another member's `x`: member k gets `x` of `source[k]`.

        Where `source[k]` is None, member k gets zeros.
        """
        size = self._axes.size(axis)
        if list(source) == list(range(size)):
            return x
        if source[0] is not None and len(set(source)) == 1:
            return self._broadcast(x, axis, source[0])
        if carrier_of(x.dtype) != x.dtype:
            return carried(lambda c: self.permute(c, axis, source), x)
        senders = [s for s in source if s is not None]
        # A wire (see `Wire`) has one receiver for each sender. If a member has several receivers,
        # all members gather all tensors instead.
        if len(set(senders)) < len(senders):
            gathered = self.gather_members(x, [axis])
            places = [-1 if s is None else s for s in source]
            place = tf.gather(tf.constant(places, tf.int32), self.coordinate(axis))
            own = tf.gather(gathered, tf.maximum(place, 0))
            return tf.where(place < 0, tf.zeros_like(x), own)
        is_own = tf.gather([s == k for k, s in enumerate(source)], self.coordinate(axis))
        result = tf.where(is_own, x, tf.zeros_like(x))
        if all(s in (None, k) for k, s in enumerate(source)):
            return result
        # NCCL's kernels wait for each other on the device, so all processes must launch them in the
        # same order. With NCCL, members therefore exchange tensors in rounds. In each round every
        # member takes part in exactly one exchange. An odd number of members cannot be paired. In
        # this case, and without NCCL, each member sends `x` to its receiver only.
        rounds = pairings(source) if self._nccl else None
        if rounds is None:
            return self._send_to_receiver(x, axis, source, result)
        for partners in rounds:
            received = self._exchange(x, axis, partners)
            is_source = [s == partner for s, partner in zip(source, partners, strict=True)]
            result = tf.where(tf.gather(is_source, self.coordinate(axis)), received, result)
        return result

    def exchange_tails(self, x: tf.Tensor, axis: int, dim: int) -> tf.Tensor:
        """Converts a slice to head-tail order along an axis, or back (both are the same exchange).

        Members k and n-1-k of the axis's n members exchange the second halves of their slices. The
        axis splits dimension `dim`, in which the slice must have an even size.
        """
        head, tail = tf.split(x, 2, dim)
        tail = self.permute(tail, axis, [*reversed(range(self._axes.size(axis)))])
        return tf.concat([head, tail], dim)

    def _send_to_receiver(
        self, x: tf.Tensor, axis: int, source: Sequence[int | None], otherwise: tf.Tensor
    ) -> tf.Tensor:
        """Sends `x` to the member whose source is this member.

        Returns:
          the tensor that this member receives, or `otherwise` if it receives nothing.
        """
        receiver_of = {s: k for k, s in enumerate(source) if s != k}
        wire = self._wire(axis, [receiver_of.get(k) for k in range(len(source))])

        def when(peers: Sequence[int | None]) -> tf.Tensor | None:
            has_peer = [peer is not None for peer in peers]
            return None if all(has_peer) else tf.gather(has_peer, self._pnum)

        sent = wire.send(x, x.shape, when(wire.receivers))
        arrived = wire.receive(x.shape, x.dtype, when(wire.senders), otherwise)
        # Nothing reads the result of the send, so TensorFlow would prune the send without this
        # dependency. Send and receive do not depend on each other, so both run at the same time.
        with tf.control_dependencies([sent]):
            return tf.ensure_shape(arrived, x.shape)

    def wire(self, axis: int, step: int) -> Wire:
        """Returns a wire along an axis: a group's member k sends to member k + step, cyclically."""
        size = self._axes.size(axis)
        return self._wire(axis, [(place + step) % size for place in range(size)])

    def _wire(self, axis: int, receivers: Sequence[int | None]) -> Wire:
        """Returns a wire from each member of a group to its receiver, a member or None."""
        log = functools.partial(
            self.record, collective_kinds.PERMUTE, sorted(self._real_axes([axis]))
        )
        pair_key, instance_key = self._pair_key(), next(_instance_keys)
        peers = self._peers(axis, receivers)
        return Wire(self._pnum, peers, pair_key, instance_key, self._hint, log)

    def _peers(self, axis: int, members: Sequence[int | None]) -> list[int | None]:
        """Returns the processor at the place `members[k]` of its group, for each processor.

        `k` is the processor's place in its group along an axis.
        """
        peers: list[int | None] = []
        for pnum, group in enumerate(self._axes.groups(self._axes.parts(axis))):
            member = members[self._axes.coordinate(axis, pnum)]
            peers.append(None if member is None else group[member])
        return peers

    def _broadcast(self, x: tf.Tensor, axis: int, source: int) -> tf.Tensor:
        """Returns one member's `x` on all members.

        Sums over the group, where the other members add zeros. Floats are summed as integers, so
        that every bit is preserved.
        """
        if x.dtype.is_floating:
            bits = {2: tf.uint16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
            return tf.bitcast(self._broadcast(tf.bitcast(x, bits), axis, source), x.dtype)
        if carrier_of(x.dtype) != x.dtype:
            return carried(lambda c: self._broadcast(c, axis, source), x)
        parts = sorted(self._real_axes([axis]))
        self.record(collective_kinds.BROADCAST, parts, x)
        # tf.zeros_like would be a constant. `DoubleProgram`, which rewrites the graph to float64,
        # could not infer the dtype of this constant.
        zeros = tf.raw_ops.ZerosLike(x=x)
        own = tf.where(tf.equal(self.coordinate(axis), source), x, zeros)
        return self._reduce(own, parts, "Add")

    def _sum_in_parts(
        self, x: tf.Tensor, axes: Sequence[int], sums: Sequence[str] = ()
    ) -> tf.Tensor:
        """Sums `x` over the group: a reduce-scatter of its parts, then an all-gather."""
        count, size = self._size(axes), math.prod(x.shape.as_list())
        flat = tf.pad(tf.reshape(x, [-1]), [[0, -size % count]])
        sizes = [self._axes.size(axis) for axis in axes]
        own = self.reduce_parts(tf.reshape(flat, [*sizes, -1]), axes, sums)
        return tf.reshape(tf.reshape(self.gather(own, axes), [-1])[:size], x.shape)

    def _reduce(self, x: tf.Tensor, axes: Sequence[int], merge_op: str) -> tf.Tensor:
        # On GPUs, TensorFlow's `CreateCollective` refuses to reduce int32 and bfloat16, even with
        # NCCL.
        wide = {tf.int32: tf.int64, tf.bfloat16: tf.float32}.get(x.dtype) if self.on_gpus else None
        if wide is None:
            merging = {"merge_op": merge_op, "final_op": "Id"}
            return self._emit(tf.raw_ops.CollectiveReduceV2, x, self._group(axes), **merging)
        return tf.cast(self._reduce(tf.cast(x, wide), axes, merge_op), x.dtype)

    def _send_parts(self, parts: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        """Sends part i of [member, ...] to member i; returns the received parts, [sender, ...]."""
        exchanged = self._emit(tf.raw_ops.CollectiveAllToAllV2, parts, self._group(sorted(axes)))
        return tf.ensure_shape(exchanged, parts.shape)

    def _by_axis(self, parts: tf.Tensor, axis: int) -> tf.Tensor:
        """[coordinate on a joint axis, ...] -> [coordinate on each of its mesh axes..., ...]."""
        sizes = [self._axes.size(part) for part in self._real_axes([axis])]
        return tf.reshape(parts, [*sizes, *parts.shape[1:]])

    def _by_member(self, axes: Sequence[int], x: tf.Tensor) -> tf.Tensor:
        """[coordinate on each axis..., ...] -> [member, ...].

        TensorFlow orders the members of a group by their devices, which are in the mesh's order.
        """
        rest = range(len(axes), x.shape.rank)
        order = sorted(range(len(axes)), key=axes.__getitem__)
        if order != list(range(len(axes))):
            x = tf.transpose(x, [*order, *rest])
        return tf.reshape(x, [-1, *x.shape[len(axes) :]])

    def _in_order_of(self, axes: Sequence[int], x: tf.Tensor) -> tf.Tensor:
        """[member, ...] -> [coordinate on each axis..., ...]."""
        x = tf.reshape(x, [*(self._axes.size(axis) for axis in sorted(axes)), *x.shape[1:]])
        order = [sorted(axes).index(axis) for axis in axes]
        if order == list(range(len(axes))):
            return x
        return tf.transpose(x, [*order, *range(len(axes), x.shape.rank)])

    def _exchange(self, x: tf.Tensor, axis: int, partners: Sequence[int]) -> tf.Tensor:
        """Exchanges `x` with a partner; `partners` has the partner of each member."""
        self.record(collective_kinds.PERMUTE, sorted(self._real_axes([axis])), x)
        other = tf.gather(tf.constant(self._peers(axis, partners), tf.int32), self._pnum)
        low, high = tf.minimum(self._pnum, other), tf.maximum(self._pnum, other)
        pair = self._pair_key() + low * len(self._devices) + high, 2
        both = self._emit(tf.raw_ops.CollectiveGatherV2, x[None], pair)
        both = tf.ensure_shape(both, [2, *x.shape])
        return tf.gather(both, tf.cast(self._pnum < other, tf.int32))

    def _emit(
        self,
        raw_op: Callable[..., tf.Tensor],
        x: tf.Tensor,
        group: tuple[tf.Tensor, int],
        **merging: str,
    ) -> tf.Tensor:
        """Emits a TensorFlow collective on the `x` of each member of the group; see `_group`."""
        group_key, group_size = group
        return raw_op(
            input=x,
            group_size=group_size,
            group_key=group_key,
            instance_key=next(_instance_keys),
            ordering_token=[],
            communication_hint=self._hint,
            **merging,
        )

    def _pair_key(self) -> int:
        """Returns the first key of the pairs of the n devices; pair (a, b) adds a * n + b to it."""
        return _first_key((self._devices, "pairs"), len(self._devices) ** 2)

    def _size(self, axes: Sequence[int]) -> int:
        return math.prod(self._axes.size(axis) for axis in axes)

    def _real_axes(self, axes: Sequence[int]) -> list[int]:
        """Returns the mesh's own axes that are parts of `axes`, without axes of size 1."""
        parts = [part for axis in axes for part in self._axes.parts(axis)]
        return [part for part in dict.fromkeys(parts) if self._axes.size(part) > 1]

    def _group(self, axes: Sequence[int]) -> tuple[tf.Tensor, int]:
        """Returns the processor's group along axes of the mesh, which are in the mesh's order.

        Returns:
          the group key, an int32 scalar that depends on the processor, and the number of members.
        """

        def key() -> tf.Tensor:
            sizes = self._axes.mesh_shape.to_integer_list
            identity = (self._devices, tuple(sizes), tuple(axes))
            # The group's number: the row-major index of its coordinates on the other axes.
            number = tf.constant(0, tf.int32)
            for axis, size in enumerate(sizes):
                if axis not in axes:
                    number = number * size + self.coordinate(axis)
            return number + _first_key(identity, len(self._devices))

        return self._keys(tuple(axes), key), self._size(axes)

    def _names(self, axes: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._axes.mesh_shape.dims[axis].name for axis in axes)

    def record(
        self,
        kind: collective_kinds.CollectiveKind,
        axes: Sequence[int],
        x: tf.Tensor | tf.TensorSpec,
        sums: Sequence[str] = (),
    ) -> None:
        """Logs a collective over axes of the mesh, each of several processors.

        `x` is a member's input. `sums` are the names of the tensors that are concatenated in it.
        """
        num_bytes = math.prod(x.shape.as_list()) * x.dtype.size
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        self.log.append(
            Collective(
                kind.name,
                self._names(axes),
                self._size(axes),
                num_bytes,
                scope,
                self._operation,
                tuple(sums),
                self._times,
            )
        )


def tree_sum(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds up tensors as a binary tree, (0 + 1) + (2 + 3); their number is a power of two."""
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] for i in range(0, len(parts), 2)]
    return parts[0]


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


def pairings(source: Sequence[int | None]) -> list[list[int]] | None:
    """Returns rounds of pairwise exchanges after which member k has exchanged with `source[k]`.

    If each slice has at most one receiver, each member has at most two partners, so two rounds are
    enough (three for a ring of odd length). A member then sends only two or three slices. In an
    all-to-all it would send a slice to every member.

    Args:
      source: the member from which each member receives a slice. None or the member itself: it
        receives nothing.

    Returns:
      The partners of all members in each round. None if there is no such schedule: a slice has
        several receivers, or the number of members is odd.
    """
    size = len(source)
    edges = [(s, k) for k, s in enumerate(source) if s is not None and s != k]
    wanted = [s for s, _ in edges]
    if size % 2 or len(set(wanted)) < len(wanted):
        return None
    rounds: list[dict[int, int]] = []
    for path in _paths(edges):
        for a, b in path:
            # At most two earlier edges share a member with this edge: the previous edge of the path
            # and, in a ring, the first edge.
            partners = next((r for r in rounds if r.get(a) == b or not {a, b} & r.keys()), None)
            if partners is None:
                rounds.append(partners := {})
            partners[a], partners[b] = b, a
    return [_all_paired(r, size) for r in rounds]


def _paths(edges: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Orders the edges into paths and rings."""
    following = dict(edges)
    starts = [a for a in following if a not in following.values()]
    paths = []
    while following:
        at = starts.pop() if starts else next(iter(following))
        path = []
        while at in following:
            path.append((at, following.pop(at)))
            at = path[-1][1]
        paths.append(path)
    return paths


def _all_paired(partners: dict[int, int], size: int) -> list[int]:
    """Pairs the members that have no partner with each other."""
    alone = [member for member in range(size) if member not in partners]
    for a, b in zip(alone[::2], alone[1::2], strict=True):
        partners[a], partners[b] = b, a
    return [partners[member] for member in range(size)]
