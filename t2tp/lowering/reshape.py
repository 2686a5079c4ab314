"""Reshapes between any two layouts.

Each mesh axis splits a tensor at a *factor* of its row-major index: if the dimensions before the
split one have `p` elements, the axis distinguishes the indices by `index // (total / (p * n)) % n`,
where `n` is the size of the axis. Two shapes of one tensor that an axis splits at the same factor
are split into the same slices: [8] and [4, 2], each split in two along its first dimension, have
the same 4 elements on each processor. So a reshape is local once each axis splits the old shape at
the factor where it is to split the new one, or splits nothing; an axis that then splits nothing
slices the result, which is local, too. If several axes split a dimension, the second splits at a
factor within the parts that the first has made.

For example, `data:2;model:2` reshapes [batch=4/data, d_model=6] to [groups=2/data, rows=2,
d_model=6/model]. `data` splits 24 elements at the factor 12 (p=1, n=2) on both sides, so it stays.
`model` splits nothing before, so each processor selects its half of d_model: no communication.

Where an axis does not divide its dimension, factors are counted in the padded tensor: [5] split
over 3 processors has slices [2] of [6]. A reshape that gathers or splits the dimension pads or cuts
the slice of the side that has all 5. A dimension whose padding cannot stay in place, because the
reshape merges it with others or another axis takes it over, is gathered first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering, Relayout
from t2tp.lowering.deferred_sums import BUCKET, SMALL
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.scatters import Scatter
from t2tp.lowering.slice_shapes import resized
from t2tp.mesh.layout import Layout


def lower_reshape(op: upstream.ReshapeOperation, lowering: Lowering) -> None:
    """Converts a tensor from one shape and layout to another."""
    mesh_impl = lowering.mesh_impl(op)
    old_shape, new_shape = op.inputs[0].shape, op.outputs[0].shape
    if _aligned(mesh_impl.layout, old_shape, new_shape) is None:
        value, shape = lowering.slice(op.inputs[0]), old_shape
        for following in (_unpadded(mesh_impl, x) for x in (old_shape, new_shape)):
            value, _ = _ReshapePlan(mesh_impl, op.name, shape, following).execute(value, [])
            shape = following
        value, _ = _ReshapePlan(mesh_impl, op.name, shape, new_shape).execute(value, [])
        lowering.set_slice(op.outputs[0], value)
        return
    plan = _ReshapePlan(mesh_impl, op.inputs[0].name, old_shape, new_shape)
    summed_axes: list[int] = []
    if plan.communicates or lowering.is_surely_needed(op.inputs[0]):
        value = lowering.slice(op.inputs[0])
    else:
        value, summed_axes = lowering.partial_sum(op.inputs[0])
    scatter = plan.only_scatter(value, summed_axes)
    if scatter is not None and lowering.scatters.accepts(scatter):
        lowering.set_tensor_lowering(op.outputs[0], lowering.scatters.defer(scatter))
        return
    value, summed_axes = plan.execute(value, summed_axes)
    lowering.set_sum_over_axes(op.outputs[0], value, summed_axes)


def relayout_all(mesh_impl: SpmdMeshImpl, wanted: Sequence[Relayout]) -> list[tf.Tensor]:
    """Converts slices; small ones that only have to be gathered are gathered together.

    Args:
      mesh_impl: the processor's.
      wanted: the slices, and what becomes of them.
    """
    plans = [_ReshapePlan(mesh_impl, w.name, w.old_shape, w.new_shape) for w in wanted]
    results: dict[int, tf.Tensor] = {}
    for bucket in _gathered_together(wanted, [plan.only_gathered() for plan in plans]):
        if len(bucket) == 1:
            (i,) = bucket
            results[i] = plans[i].execute(wanted[i].x, [])[0]
            continue
        axes = plans[bucket[0]].only_gathered() or []
        flat = tf.concat([tf.reshape(wanted[i].x, [-1]) for i in bucket], axis=0)
        with mesh_impl.collectives.attributed_to(wanted[bucket[0]].name):
            names = [wanted[i].name for i in bucket]
            gathered = mesh_impl.collectives.gather(flat, axes, names)
        # [coordinate on each axis..., elements] -> [member, elements]
        by_member = tf.reshape(gathered, [-1, *flat.shape])
        sizes = [math.prod(wanted[i].x.shape.as_list()) for i in bucket]
        for i, whole in zip(bucket, tf.split(by_member, sizes, axis=1), strict=True):
            results[i] = plans[i].gathered(wanted[i].x, whole)
    return [results[i] for i in range(len(wanted))]


def _gathered_together(
    wanted: Sequence[Relayout], axes: Sequence[Sequence[int] | None]
) -> Iterator[list[int]]:
    """Yields which of the slices are gathered in one collective, in their order.

    Args:
      wanted: the slices.
      axes: for each slice the axes to gather it over; None: it needs more than a gather.
    """
    buckets: list[list[int]] = []
    open_ones: dict[tuple, list[int]] = {}
    for i, (each, over) in enumerate(zip(wanted, axes, strict=True)):
        size = math.prod(each.new_shape.to_integer_list) * each.x.dtype.size
        if over is None or size > SMALL:
            buckets.append([i])
            continue
        key = tuple(over), each.x.dtype
        bucket = open_ones.get(key, [])
        held = sum(math.prod(wanted[j].new_shape.to_integer_list) for j in bucket)
        if not bucket or held * each.x.dtype.size + size > BUCKET:
            bucket = open_ones[key] = []
            buckets.append(bucket)
        bucket.append(i)
    yield from buckets


class Factor(NamedTuple):
    """A factor of the row-major index of a tensor, as if it were a dimension.

    Attributes:
      begin: product of the sizes of all factors before it.
      size: size of the factor.
    """

    begin: int
    size: int

    @property
    def end(self) -> int:
        """The product of the sizes of all factors up to it."""
        return self.begin * self.size

    def contains(self, other: Factor) -> bool:
        """Whether another factor is a part of it."""
        return other.begin % self.begin == 0 and self.end % other.end == 0


class _FactoredSlice:
    """A processor's slice of a tensor, by the factors of the tensor that are not split.

    Attributes:
      value: the slice.
      factors: the factors along which it is complete, in order.
    """

    def __init__(self, value: tf.Tensor, factors: Sequence[Factor]) -> None:
        self.value = value
        self.factors = list(factors)

    def has(self, factor: Factor) -> bool:
        """Whether the slice has all elements along a factor."""
        return any(have.contains(factor) for have in _merged(self.factors))

    def take(self, factors: Collection[Factor]) -> tf.Tensor:
        """Takes factors out, to the front: [size of each of them..., size of each other one...]."""
        cut = self._cut(factors)
        rest = [factor for factor in cut if factor not in factors]
        order = [cut.index(factor) for factor in (*factors, *rest)]
        self.factors = rest
        x = tf.reshape(self.value, [factor.size for factor in cut])
        return x if order == sorted(order) else tf.transpose(x, order)

    def select(self, places: dict[Factor, tf.Tensor]) -> None:
        """Keeps one index of each of these factors, an int32 scalar."""
        cut = self._cut(places)
        begin = [places.get(factor, 0) for factor in cut]
        size = [1 if factor in places else factor.size for factor in cut]
        x = tf.reshape(self.value, [factor.size for factor in cut])
        self.value = tf.slice(x, begin, size)
        self.factors = [factor for factor in cut if factor not in places]

    def put(self, factors: Collection[Factor], x: tf.Tensor) -> None:
        """Sets the value to `x`: the opposite of `take`.

        Args:
          factors: factors to add.
          x: [size of each of them..., size of each that it has...].
        """
        together = [*factors, *self.factors]
        x = tf.reshape(x, [factor.size for factor in together])
        order = sorted(range(len(together)), key=lambda i: together[i].begin)
        self.value = x if order == sorted(order) else tf.transpose(x, order)
        self.factors = [together[i] for i in order]

    def _cut(self, wanted: Collection[Factor]) -> list[Factor]:
        """Returns the factors of the slice so that each wanted one is among them."""
        cut = _merged(self.factors)
        for factor in wanted:
            at = next(i for i, have in enumerate(cut) if have.contains(factor))
            have = cut[at]
            before = Factor(have.begin, factor.begin // have.begin)
            after = Factor(factor.end, have.end // factor.end)
            cut[at : at + 1] = [f for f in (before, factor, after) if f.size > 1]
        return cut


def _merged(factors: Sequence[Factor]) -> list[Factor]:
    """Joins factors where one begins at the other's end."""
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
    ) -> None:
        self._mesh_impl = mesh_impl
        self._collectives = mesh_impl.collectives
        self._name = name
        self._slice_shape = mesh_impl.slice_shape(new_shape)
        self._summed_axes: list[int] = []
        aligned = _aligned(mesh_impl.layout, old_shape, new_shape)
        assert aligned is not None  # `lower_reshape` has taken other ways.
        old_sizes, self._new_sizes = aligned
        self._old, self._old_rest = _split_factors(mesh_impl, old_shape, old_sizes)
        self._new, _ = _split_factors(mesh_impl, new_shape, self._new_sizes)
        self._old_slice, self._new_slice = (
            [
                size // mesh_impl.shape[axis].size if axis is not None else size
                for size, axis in zip(sizes, mesh_impl.tensor_layout(shape), strict=True)
            ]
            for sizes, shape in ((old_sizes, old_shape), (self._new_sizes, new_shape))
        )

    @property
    def communicates(self) -> bool:
        """Whether processors exchange elements.

        A deferred sum is then reduced first: deferring it pays only if the result is sliced, so
        that less is left to reduce.
        """
        return any(self._new.get(axis) != factor for axis, factor in self._old.items())

    def only_gathered(self) -> list[int] | None:
        """Returns the axes over which the tensor is to be gathered; None if that is not all."""
        gathered = [axis for axis in self._old if axis not in self._new]
        stay = {axis: factor for axis, factor in self._old.items() if axis in self._new}
        return gathered if gathered and stay == self._new else None

    def gathered(self, x: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
        """Returns the slice of the new shape, of a tensor that is only gathered.

        Args:
          x: the slice of the old shape.
          whole: the gathered slices, [member, number of elements of `x`].
        """
        part = self._begun(x)
        part.put([self._old[axis] for axis in self.only_gathered() or []], whole)
        return self._finished(part.value)

    def only_scatter(self, x: tf.Tensor, summed_axes: list[int]) -> Scatter | None:
        """Returns the reduce-scatter that the conversion of a partial sum is; None if it is more.

        Args:
          x: the partial sum.
          summed_axes: the mesh axes of the sum.
        """
        added = {axis: factor for axis, factor in self._new.items() if axis not in self._old}
        stay = {axis: factor for axis, factor in self._new.items() if axis in self._old}
        part = self._begun(x)
        if (
            not added
            or stay != self._old
            or set(added) != set(summed_axes)
            or not all(part.has(factor) for factor in added.values())
        ):
            return None
        parts = part.take(list(added.values()))

        def finish(own: tf.Tensor) -> tf.Tensor:
            part.put([], own)
            return self._finished(part.value)

        return Scatter(self._name, parts, list(added), self._slice_shape, finish)

    def execute(self, x: tf.Tensor, summed_axes: list[int]) -> tuple[tf.Tensor, list[int]]:
        """Converts the processor's slice from the old shape and layout to the new ones.

        Args:
          x: the slice, or the partial sum of a deferred sum.
          summed_axes: the mesh axes of that sum.

        Returns:
          the slice or partial sum, and the axes that are still to be summed over. A reduce-scatter
          has summed over axes that split the result.
        """
        self._summed_axes = list(summed_axes)
        part = self._begun(x)
        placed = self._bring_axes_to_new_factors(part)
        late = {axis: factor for axis, factor in self._new.items() if axis not in placed}
        if late:
            taken = [self._new[axis] for axis in placed]
            part = _FactoredSlice(part.value, _without(self._new_sizes, taken))
            self._keep_own_part(part, late)
        return self._finished(part.value), self._summed_axes

    def _begun(self, x: tf.Tensor) -> _FactoredSlice:
        """Pads the slice of the old shape to its aligned sizes."""
        return _FactoredSlice(resized(x, self._old_slice), self._old_rest)

    def _finished(self, x: tf.Tensor) -> tf.Tensor:
        """Cuts the aligned slice to the slice of the new shape."""
        return resized(tf.reshape(x, self._new_slice), self._slice_shape)

    def _bring_axes_to_new_factors(self, part: _FactoredSlice) -> Collection[int]:
        """Makes each axis split its new factor, or nothing.

        Each step is the cheapest possible one. A selection from the local slice moves nothing and
        makes later steps smaller. An all-to-all moves a slice. An all-gather multiplies it. Axes
        that can do the same step share a collective. An axis can only move to a factor that no
        other axis splits. If axes wait for each other (two that swap their factors), an all-gather
        frees one. The loop ends because no step takes an axis away from its new factor, and a
        gathered axis comes back only there.

        Returns:
          the axes that split their new factors.
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
                homeless = [axis for axis in misplaced if axis not in self._new]
                gathered = homeless or list(misplaced)[:1]
                whole = self._collectives.gather(part.take([]), gathered)
                part.put([split_by.pop(axis) for axis in gathered], whole)
            else:
                return split_by

    def _keep_own_part(self, part: _FactoredSlice, factors: dict[int, Factor]) -> None:
        """Makes axes split factors that no axis splits yet.

        If the tensor is a partial sum over such an axis, a processor needs only its part of the
        sum. That is a reduce-scatter, which moves half the bytes of an all-reduce.
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
    """Returns the sizes of old and new dimensions, with the padding that both have meanwhile.

    A padded dimension keeps its padding if it stays one dimension, and if the axes that split it on
    one side begin with the axes that split it on the other. Returns None if one does not.
    """
    olds, news = (
        {(begin, dim.size): i for i, (begin, dim) in enumerate(_begins(shape))}
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
        if first and padded[0] != padded[1]:  # Slices begin at different rows.
            return None
        for side, i, _ in sides:
            sizes[side][i] = max(padded)
    return sizes


def _begins(shape: upstream.Shape) -> Iterator[tuple[int, upstream.Dimension]]:
    """Yields each dimension with the product of the sizes before it."""
    begin = 1
    for dim in shape.dims:
        yield begin, dim
        begin *= dim.size


def _unpadded(mesh_impl: SpmdMeshImpl, shape: upstream.Shape) -> upstream.Shape:
    """Returns a shape whose padded dimensions are not split."""
    # Layout rules cannot name a dimension with a space.
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
    """Returns the factor that each mesh axis splits, and the factors that nothing splits."""
    split: dict[int, Factor] = {}
    begin = 1
    for size, axis in zip(sizes, mesh_impl.tensor_layout(shape), strict=True):
        at = begin
        for part in () if axis is None else mesh_impl.layout.axes.parts(axis):
            split[part] = Factor(at, mesh_impl.shape[part].size)
            at = split[part].end
        begin *= size
    return split, _without(sizes, list(split.values()))


def _without(sizes: Sequence[int], split: Sequence[Factor]) -> list[Factor]:
    """Returns the factors of a tensor that are left when some are split."""
    left = []
    begin = 1
    for factor in sorted(split):
        left.append(Factor(begin, factor.begin // begin))
        begin = factor.end
    left.append(Factor(begin, math.prod(sizes) // begin))
    return [factor for factor in left if factor.size > 1]
