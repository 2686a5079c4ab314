"""Reshapes between any two layouts.

A mesh axis splits a tensor at a *position*: the product of the sizes of the dimensions before the
split one (1 for the first dimension, 4 for the second one of [4, 6], ...). Two dimensions at one
position, in two shapes of the same tensor, are split into the same slices: [8] and [4, 2], each
split in two along its first dimension, have the same 4 elements on each processor. So a reshape is
local once each axis splits the old shape at the position where it is to split the new one, or
splits nothing; an axis that then splits nothing slices the result, which is local, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.mesh_impl import SpmdMeshImpl

if TYPE_CHECKING:
    from t2tp.lowering.lowering import Lowering


def lower_reshape(op: upstream.ReshapeOperation, lowering: Lowering) -> None:
    """Converts a tensor from one shape and layout to another."""
    mesh_impl = lowering.mesh_impl(op)
    old_shape, new_shape = op.inputs[0].shape, op.outputs[0].shape
    plan = _ReshapePlan(mesh_impl, op.inputs[0].name, old_shape, new_shape)
    summed_axes: list[int] = []
    if plan.communicates or lowering.is_surely_needed(op.inputs[0]):
        value = lowering.slice(op.inputs[0])
    else:
        value, summed_axes = lowering.partial_sum(op.inputs[0])
    value, summed_axes = plan.execute(value, summed_axes)
    lowering.set_sum_over_axes(op.outputs[0], value, summed_axes)


class _ReshapePlan:
    """The plan for each mesh axis to get from one shape and layout to another.

    Three dictionaries map a mesh axis to the index of a dimension: of the old shape, which the axis
    splits now (`_old_dim`) or must split before the local reshape (`_target_dim`); and of the new
    shape, which it must split after that (`_new_dim`). An axis without a target splits nothing
    during the reshape.
    """

    def __init__(
        self,
        mesh_impl: SpmdMeshImpl,
        name: str,
        old_shape: upstream.Shape,
        new_shape: upstream.Shape,
    ) -> None:
        self._mesh_impl = mesh_impl
        self._name = name
        self._old_shape = old_shape
        self._new_shape = new_shape
        self._summed_axes: list[int] = []
        self._old_dim = _split_dims(mesh_impl, old_shape)
        self._new_dim = _split_dims(mesh_impl, new_shape)
        self._target_dim: dict[int, int] = {}
        for axis, new_dim in self._new_dim.items():
            old_dim = old_shape.cumprod_to_tensor_axis(new_shape.cumprod[new_dim])
            size = mesh_impl.shape[axis].size
            if old_dim is not None and old_shape[old_dim].size % size == 0:
                self._target_dim[axis] = old_dim
        # A dimension shares its position with dimensions of size 1 before it. If several are at
        # the right position, an axis stays at the one that it splits already.
        for axis, old_dim in self._old_dim.items():
            target = self._new_dim.get(axis)
            if target is not None and old_shape.cumprod[old_dim] == new_shape.cumprod[target]:
                self._target_dim[axis] = old_dim

    @property
    def communicates(self) -> bool:
        """Whether processors exchange elements.

        A deferred sum is then reduced first: deferring it pays only if the result is sliced, so
        that less is left to reduce.
        """
        return any(self._target_dim.get(axis) != dim for axis, dim in self._old_dim.items())

    def execute(self, x: tf.Tensor, summed_axes: list[int]) -> tuple[tf.Tensor, list[int]]:
        """Converts the processor's slice from the old shape and layout to the new ones.

        Args:
          x: the slice, or the partial sum of a deferred sum.
          summed_axes: the mesh axes of that sum.

        Returns:
          the slice or partial sum, and the axes over which it is still to be summed: not those that
          split the result, along which a reduce-scatter has summed it.
        """
        self._summed_axes = list(summed_axes)
        x, placed = self._bring_axes_to_targets(x)
        sizes = self._new_shape.to_integer_list
        for axis in placed:
            sizes[self._new_dim[axis]] //= self._mesh_impl.shape[axis].size
        x = tf.reshape(x, sizes)
        for axis in sorted(self._new_dim.keys() - placed):
            x = self._take_own_slice(x, axis, self._new_dim[axis])
        return x, self._summed_axes

    def _bring_axes_to_targets(self, x: tf.Tensor) -> tuple[tf.Tensor, set[int]]:
        """Makes each axis split its target dimension, or nothing.

        One axis at a time, always by the cheapest possible step: slicing what a processor has moves
        nothing and makes all that follows smaller; an all-to-all moves a slice; an all-gather
        multiplies it. An axis can only move to a dimension that no other axis splits. If axes wait
        for each other (two that swap their dimensions), an all-gather frees one. It terminates
        because no step takes an axis away from its target, and an axis that was gathered comes back
        only at its target.

        Returns:
          the slice, and the axes that split their target dimensions.
        """
        split_by = dict(self._old_dim)
        collectives = self._mesh_impl.collectives
        while True:
            taken = set(split_by.values())
            movable = [
                axis
                for axis, dim in self._target_dim.items()
                if split_by.get(axis) != dim and dim not in taken
            ]
            misplaced = [a for a, dim in split_by.items() if self._target_dim.get(a) != dim]
            idle = [axis for axis in movable if axis not in split_by]
            if idle:
                axis = idle[0]
                split_by[axis] = self._target_dim[axis]
                x = self._take_own_slice(x, axis, split_by[axis])
            elif movable:
                axis = movable[0]
                x = collectives.alltoall(x, axis, self._target_dim[axis], split_by[axis])
                split_by[axis] = self._target_dim[axis]
            elif misplaced:
                axis = misplaced[0]
                x = collectives.allgather(x, axis, split_by.pop(axis))
            else:
                return x, set(split_by)

    def _take_own_slice(self, x: tf.Tensor, axis: int, dim: int) -> tf.Tensor:
        """Slices along a dimension that no axis splits yet.

        Of a sum over this very axis a processor needs only its slice: a reduce-scatter, which moves
        half as much as the all-reduce.
        """
        if axis in self._summed_axes:
            self._summed_axes.remove(axis)
            return self._mesh_impl.collectives.reducescatter(x, axis, dim, [self._name])
        size = x.shape.as_list()
        size[dim] //= self._mesh_impl.shape[axis].size
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[dim] = self._mesh_impl.collectives.coordinate(axis) * size[dim]
        return tf.slice(x, begin, size)


def _split_dims(mesh_impl: SpmdMeshImpl, shape: upstream.Shape) -> dict[int, int]:
    layout = mesh_impl.tensor_layout(shape).tensor_axis_to_mesh_axis
    return {axis: dim for dim, axis in enumerate(layout) if axis is not None}
