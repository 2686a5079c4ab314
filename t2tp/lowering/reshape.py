"""Reshapes between any two layouts.

Write the row-major index of an element as a mixed-radix number. An axis splits a tensor by one
digit of this number. Such a digit is called a *factor*. Let `n` be the size of the axis, `p` the
product of the sizes of the dimensions before the split dimension, and `total` the number of
elements of the tensor. Then element number `index` is in slice `index // (total / (p * n)) % n`.

If an axis splits two shapes of a tensor at the same factor, their slices are the same: [8] and [4,
2], each split in two along its first dimension, have the same 4 elements on each processor. A
reshape is local if each axis either splits both shapes at the same factor, or splits only the new
shape. In the second case each processor selects its part of the result. An axis that splits only
the old shape is gathered. If an axis splits the two shapes at different factors, a collective first
moves the axis to the new factor. If several axes split a dimension, the second axis splits the
slices of the first axis.

For example, `data:2;model:2` reshapes [batch=4/data, d_model=6] to [groups=2/data, rows=2,
d_model=6/model]. `data` divides the 24 indices by `index // 12 % 2` (p=1, n=2) in both shapes, so
it stays. `model` splits only the new shape, so each processor selects its half of d_model. No
communication is necessary.

If the size of an axis does not divide the size of its dimension, the factors are those of the
padded tensor: [5] split over 3 processors is padded to [6] and has slices [2]. If only one of the
two shapes splits the dimension, the other shape has all 5 elements on each processor. An unsplit
old shape is padded to 6 before the reshape, and an unsplit new shape is cut to 5 after it. If the
reshape merges the dimension with other dimensions, or another axis splits it afterwards, its
padding cannot stay in place, so the dimension is gathered first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering, Relayout
from t2tp.lowering.deferred_sums import BUCKET, SMALL, DeferredSums, Scatter
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.slice_shapes import reshaped, resized, transposed
from t2tp.mesh.layout import Layout


def lower_reshape(op: upstream.ReshapeOperation, lowering: Lowering) -> None:
    """Converts a tensor from one shape and layout to another."""
    mesh_impl = lowering.mesh_impl(op)
    old_shape, new_shape = op.inputs[0].shape, op.outputs[0].shape
    if _aligned(mesh_impl.layout, old_shape, new_shape) is None:
        # Padding cannot stay: gather padded dimensions, reshape without padding, and split again.
        shapes = old_shape, *(_unpadded(mesh_impl, x) for x in (old_shape, new_shape)), new_shape
        value = lowering.slice(op.inputs[0])
        for before, after in itertools.pairwise(shapes):
            value, _ = _ReshapePlan(mesh_impl, op.name, before, after).execute(value, [])
        lowering.set_slice(op.outputs[0], value)
        return
    plan = _ReshapePlan(mesh_impl, op.inputs[0].name, old_shape, new_shape)
    summed_axes: list[int] = []
    if plan.communicates or op.inputs[0] in lowering.needed:
        value = lowering.slice(op.inputs[0])
    else:
        value, summed_axes = lowering.partial_sum(op.inputs[0])
    scatter = plan.only_scatter(lowering.sums, value, summed_axes)
    if scatter is None and mesh_impl.layout.exact_sums and plan.splits_over(summed_axes):
        # Reduce-scattering over some of the axes first would change the order of the sum.
        value, summed_axes = lowering.slice(op.inputs[0]), []
    if scatter is not None and scatter.num_bytes <= SMALL:
        lowering.sums.start(scatter)
        lowering.set_tensor_lowering(op.outputs[0], scatter)
        return
    value, summed_axes = plan.execute(value, summed_axes)
    lowering.set_sum_over_axes(op.outputs[0], value, summed_axes)


def relayout(
    x: tf.Tensor, shape: upstream.Shape, before: SpmdMeshImpl, after: SpmdMeshImpl
) -> tf.Tensor:
    """Converts a slice from the layout of a mesh implementation to the layout of another."""
    if before is after:
        return x
    return _ReshapePlan(after, "", shape, shape, before).execute(x, [])[0]


def relayout_all(mesh_impl: SpmdMeshImpl, relayouts: Sequence[Relayout]) -> list[tf.Tensor]:
    """Converts slices to new layouts. Small slices that need only a gather share a collective."""
    plans = [_ReshapePlan(mesh_impl, r.name, r.old_shape, r.new_shape) for r in relayouts]
    results: dict[int, tf.Tensor] = {}
    for bucket in _gather_buckets(relayouts, [plan.gather_only_axes() for plan in plans]):
        with mesh_impl.collectives.attributed_to(relayouts[bucket[0]].name):
            if len(bucket) == 1:
                (i,) = bucket
                results[i] = plans[i].execute(relayouts[i].x, [])[0]
                continue
            axes = plans[bucket[0]].gather_only_axes() or []
            flat = tf.concat([tf.reshape(relayouts[i].x, [-1]) for i in bucket], axis=0)
            names = [relayouts[i].name for i in bucket]
            gathered = mesh_impl.collectives.gather(flat, axes, names)
        # [coordinate on each axis..., elements] -> [member, elements]
        by_member = tf.reshape(gathered, [-1, *flat.shape])
        sizes = [math.prod(relayouts[i].x.shape.as_list()) for i in bucket]
        for i, whole in zip(bucket, tf.split(by_member, sizes, axis=1), strict=True):
            results[i] = plans[i].from_gathered(relayouts[i].x, whole)
    return [results[i] for i in range(len(relayouts))]


def _gather_buckets(
    relayouts: Sequence[Relayout], axes: Sequence[Sequence[int] | None]
) -> list[list[int]]:
    """Groups the indices of conversions whose gathers can share a collective."""
    sizes = [math.prod(r.new_shape.to_integer_list) * r.x.dtype.size for r in relayouts]
    buckets: list[list[int]] = []
    open_buckets: dict[object, list[int]] = {}
    for i, (each, gather_axes) in enumerate(zip(relayouts, axes, strict=True)):
        key: object = i
        if gather_axes is not None and sizes[i] <= SMALL:
            key = (*gather_axes, each.x.dtype)
        bucket = open_buckets.get(key, [])
        if not bucket or sum(sizes[j] for j in (*bucket, i)) > BUCKET:
            bucket = open_buckets[key] = []
            buckets.append(bucket)
        bucket.append(i)
    return buckets


class Factor(NamedTuple):
    """A factor of a tensor's row-major index, such as a dimension or a part of a dimension.

    Attributes:
      begin: product of the sizes of all factors before it.
      size: size of the factor.
    """

    begin: int
    size: int

    @property
    def end(self) -> int:
        """The product of the sizes of this factor and all factors before it."""
        return self.begin * self.size

    def contains(self, other: Factor) -> bool:
        """Whether `other` is a part of this factor."""
        return other.begin % self.begin == 0 and self.end % other.end == 0


class _FactoredSlice:
    """A processor's slice, as an array with a dimension for each factor that is not split."""

    def __init__(self, value: tf.Tensor, factors: Sequence[Factor]) -> None:
        self.value = value
        self.factors = list(factors)

    def has(self, factor: Factor) -> bool:
        """Whether the slice has all elements along a factor."""
        return any(have.contains(factor) for have in _merged(self.factors))

    def take(self, factors: Collection[Factor]) -> tf.Tensor:
        """Removes factors from the slice; returns [sizes of `factors`..., remaining sizes...]."""
        cut = self._cut(factors)
        rest = [factor for factor in cut if factor not in factors]
        order = [cut.index(factor) for factor in (*factors, *rest)]
        self.factors = rest
        x = tf.reshape(self.value, [factor.size for factor in cut])
        return transposed(x, order)

    def select(self, places: dict[Factor, tf.Tensor]) -> None:
        """Selects one index (an int32 scalar) of each factor, and removes these factors."""
        cut = self._cut(places)
        begin = [places.get(factor, 0) for factor in cut]
        size = [1 if factor in places else factor.size for factor in cut]
        x = tf.reshape(self.value, [factor.size for factor in cut])
        self.value = tf.slice(x, begin, size)
        self.factors = [factor for factor in cut if factor not in places]

    def put(self, factors: Collection[Factor], x: tf.Tensor) -> None:
        """The inverse of `take`: `x` is [sizes of `factors`..., sizes of `self.factors`...]."""
        all_factors = [*factors, *self.factors]
        x = tf.reshape(x, [factor.size for factor in all_factors])
        order = sorted(range(len(all_factors)), key=lambda i: all_factors[i].begin)
        self.value = transposed(x, order)
        self.factors = [all_factors[i] for i in order]

    def _cut(self, targets: Collection[Factor]) -> list[Factor]:
        """Divides the factors of the slice so that each target is a factor by itself."""
        cut = _merged(self.factors)
        for factor in targets:
            at = next(i for i, have in enumerate(cut) if have.contains(factor))
            have = cut[at]
            before = Factor(have.begin, factor.begin // have.begin)
            after = Factor(factor.end, have.end // factor.end)
            cut[at : at + 1] = [f for f in (before, factor, after) if f.size > 1]
        return cut


def _merged(factors: Sequence[Factor]) -> list[Factor]:
    """Joins two factors if the second begins where the first ends."""
    merged: list[Factor] = []
    for factor in factors:
        if merged and merged[-1].end == factor.begin:
            before = merged.pop()
            factor = Factor(before.begin, before.size * factor.size)
        merged.append(factor)
    return merged


class _ReshapePlan:
    """The factor that each mesh axis splits before and after a reshape."""

    def __init__(
        self,
        mesh_impl: SpmdMeshImpl,
        name: str,
        old_shape: upstream.Shape,
        new_shape: upstream.Shape,
        old_mesh_impl: SpmdMeshImpl | None = None,
    ) -> None:
        """Plans a reshape; `old_mesh_impl` has the old shape's layout if it differs."""
        before = old_mesh_impl or mesh_impl
        self._collectives = mesh_impl.collectives
        self._name = name
        self._slice_shape = mesh_impl.slice_shape(new_shape)
        self._summed_axes: list[int] = []
        aligned = _aligned(mesh_impl.layout, old_shape, new_shape)
        assert aligned is not None  # `lower_reshape` has handled shapes that do not align.
        old_sizes, new_sizes = aligned
        self._old, self._old_rest = _split_factors(before, old_shape, old_sizes)
        self._new, _ = _split_factors(mesh_impl, new_shape, new_sizes)
        self._old_slice = _slice_sizes(before, old_shape, old_sizes)
        self._new_slice = _slice_sizes(mesh_impl, new_shape, new_sizes)

    @property
    def communicates(self) -> bool:
        """Whether processors exchange elements; a deferred sum is then reduced first."""
        return not self._old.items() <= self._new.items()

    def splits_over(self, axes: Collection[int]) -> bool:
        """Whether one of these axes splits the new shape."""
        return not self._new.keys().isdisjoint(axes)

    def gather_only_axes(self) -> list[int] | None:
        """Returns the axes to gather over; None if the reshape needs more than a gather."""
        if not self._new.items() < self._old.items():
            return None
        return [axis for axis in self._old if axis not in self._new]

    def from_gathered(self, x: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
        """Returns the slice of the new shape, for a reshape that needs only a gather.

        `whole` has the gathered slices: [member, number of elements of the old slice `x`].
        """
        part = self._padded_slice(x)
        part.put([self._old[axis] for axis in self.gather_only_axes() or []], whole)
        return self._cut_slice(part.value)

    def only_scatter(
        self, sums: DeferredSums, x: tf.Tensor, summed_axes: list[int]
    ) -> Scatter | None:
        """Returns the reduce-scatter of a partial sum if the reshape needs only this collective."""
        added = {axis: factor for axis, factor in self._new.items() if axis not in self._old}
        part = self._padded_slice(x)
        is_sum = bool(added) and added.keys() == set(summed_axes)
        if not is_sum or self.communicates or not all(map(part.has, added.values())):
            return None
        parts = part.take(list(added.values()))

        def finish(own: tf.Tensor) -> tf.Tensor:
            part.put([], own)
            return self._cut_slice(part.value)

        return Scatter(sums, self._name, [parts], list(added), list(self._slice_shape), finish)

    def execute(self, x: tf.Tensor, summed_axes: list[int]) -> tuple[tf.Tensor, list[int]]:
        """Converts a slice, or a partial sum over `summed_axes`, to the new shape and layout.

        Returns:
          the slice or partial sum, and the axes still to be summed over. A reduce-scatter has
          already summed over the axes that split the result.
        """
        self._summed_axes = list(summed_axes)
        part = self._padded_slice(x)
        self._bring_axes_to_new_factors(part)
        return self._cut_slice(part.value), self._summed_axes

    def _padded_slice(self, x: tf.Tensor) -> _FactoredSlice:
        """Pads the slice of the old shape to its aligned sizes."""
        return _FactoredSlice(resized(x, self._old_slice), self._old_rest)

    def _cut_slice(self, x: tf.Tensor) -> tf.Tensor:
        """Cuts the aligned slice to the slice of the new shape."""
        return resized(reshaped(x, self._new_slice), self._slice_shape)

    def _bring_axes_to_new_factors(self, part: _FactoredSlice) -> None:
        """Moves axes to their new factors. All other axes then split nothing.

        Each step is the cheapest possible one: a selection from the local slice moves nothing, an
        all-to-all moves a slice, and an all-gather multiplies the size of the slice. If two axes
        swap their factors, an all-gather over one axis frees its factor for the other axis. The
        loop ends because no step moves an axis away from its new factor, and a gathered axis moves
        only to its new factor.
        """
        split_by = dict(self._old)
        while True:
            misplaced = {a: f for a, f in split_by.items() if self._new.get(a) != f}
            reachable = {
                axis: factor
                for axis, factor in self._new.items()
                if split_by.get(axis) != factor and part.has(factor)
            }
            idle = {axis: f for axis, f in reachable.items() if axis not in split_by}
            if idle:
                self._keep_own_part(part, idle)
                split_by |= idle
            elif reachable:
                exchanged = self._collectives.exchange(
                    part.take(list(reachable.values())), list(reachable)
                )
                part.put([split_by[axis] for axis in reachable], exchanged)
                split_by |= reachable
            elif misplaced:
                leaving = [axis for axis in misplaced if axis not in self._new]
                gather_axes = leaving or list(misplaced)[:1]
                whole = self._collectives.gather(part.take([]), gather_axes)
                part.put([split_by.pop(axis) for axis in gather_axes], whole)
            else:
                return

    def _keep_own_part(self, part: _FactoredSlice, factors: dict[int, Factor]) -> None:
        """Makes axes split factors that no axis splits yet.

        A partial sum over one of these axes is reduce-scattered, which moves half the bytes of an
        all-reduce.
        """
        summed = {axis: f for axis, f in factors.items() if axis in self._summed_axes}
        places = {f: self._collectives.coordinate(a) for a, f in factors.items() if a not in summed}
        if places:
            part.select(places)
        if summed:
            parts = part.take(list(summed.values()))
            part.put([], self._collectives.reduce_parts(parts, list(summed), [self._name]))
            self._summed_axes = [axis for axis in self._summed_axes if axis not in summed]


def _aligned(
    layout: Layout, old_shape: upstream.Shape, new_shape: upstream.Shape
) -> tuple[list[int], list[int]] | None:
    """Returns the sizes of the old shape and of the new shape, with the same padding in both.

    A padded dimension can keep its padding if both shapes have the dimension, and the same axes
    split it in both. One shape may have further axes after these, or may not split the dimension at
    all. If both shapes split it, its padded size must be the same in both. If some dimension cannot
    keep its padding, returns None.
    """
    olds, news = (
        {(begin, dim.size): i for i, (begin, dim) in enumerate(begins(shape))}
        for shape in (old_shape, new_shape)
    )
    sizes = old_shape.to_integer_list, new_shape.to_integer_list
    for place in (*olds, *news):
        sides = [
            (i, dims[place], shape.dims[dims[place]])
            for i, (dims, shape) in enumerate(((olds, old_shape), (news, new_shape)))
            if place in dims
        ]
        if not any(layout.is_padded(dim) for _, _, dim in sides):
            continue
        first, *others = sorted((layout.axes_of(dim.name) for _, _, dim in sides), key=len)
        if not others or others[0][: len(first)] != first:
            return None
        padded = [
            math.prod(a.size for a in layout.axes_of(d.name))
            * layout.slice_size(upstream.Shape([d]))[0]
            for _, _, d in sides
        ]
        if first and padded[0] != padded[1]:  # Slices begin at different indices.
            return None
        for side, i, _ in sides:
            sizes[side][i] = max(padded)
    return sizes


def begins(shape: upstream.Shape) -> Iterator[tuple[int, upstream.Dimension]]:
    """Yields each dimension with the product of the sizes before it."""
    begin = 1
    for dim in shape.dims:
        yield begin, dim
        begin *= dim.size


def _unpadded(mesh_impl: SpmdMeshImpl, shape: upstream.Shape) -> upstream.Shape:
    """Returns a shape whose padded dimensions are not split."""
    # A dimension with a space in its name is not split, because no layout rule can name it.
    return upstream.Shape(
        [
            upstream.Dimension(f"all {dim.name}", dim.size)
            if mesh_impl.layout.is_padded(dim)
            else dim
            for dim in shape.dims
        ]
    )


def _split_factors(
    mesh_impl: SpmdMeshImpl, shape: upstream.Shape, sizes: Sequence[int]
) -> tuple[dict[int, Factor], list[Factor]]:
    """Returns the factor that each mesh axis splits, and the factors that no axis splits."""
    split: dict[int, Factor] = {}
    begin = 1
    for size, axis in zip(sizes, mesh_impl.tensor_layout(shape), strict=True):
        at = begin
        for part in () if axis is None else mesh_impl.layout.axes.parts(axis):
            split[part] = Factor(at, mesh_impl.shape[part].size)
            at = split[part].end
        begin *= size
    return split, _without(sizes, list(split.values()))


def _slice_sizes(mesh_impl: SpmdMeshImpl, shape: upstream.Shape, sizes: Sequence[int]) -> list[int]:
    """Divides the aligned sizes of a shape by the numbers of slices."""
    slices = [mesh_impl.layout.num_slices(dim.name) for dim in shape.dims]
    return [size // count for size, count in zip(sizes, slices, strict=True)]


def _without(sizes: Sequence[int], split: Sequence[Factor]) -> list[Factor]:
    """Returns the factors of a tensor that are not split."""
    unsplit = []
    begin = 1
    for factor in sorted(split):
        unsplit.append(Factor(begin, factor.begin // begin))
        begin = factor.end
    unsplit.append(Factor(begin, math.prod(sizes) // begin))
    return [factor for factor in unsplit if factor.size > 1]
