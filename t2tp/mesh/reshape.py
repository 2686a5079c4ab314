"""Reshapes between any two layouts.

A mesh axis splits a tensor at a *place*: the number of slices that the dimensions before the split
one make (1 for the first dimension, 4 for the second one of [4, 6], ...). Two dimensions that an
axis splits at one place, in two shapes of the same tensor, are cut into the same parts; so once all
axes are at places where they are to be, or nowhere, each processor reshapes its own slice, and the
axes that are nowhere yet then cut the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.spmd import SpmdMeshImpl

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def lower_reshape(op: mtf.ReshapeOperation, lowering: Lowering) -> None:
    """Brings a tensor from one shape and layout to another."""
    mesh_impl = lowering.mesh_impl(op)
    old_shape, new_shape = op.inputs[0].shape, op.outputs[0].shape
    moves = _Moves(mesh_impl, op.inputs[0].name, old_shape, new_shape)
    summed_axes: list[int] = []
    if moves.communicates or lowering.is_surely_needed(op.inputs[0]):
        value = lowering.slice(op.inputs[0])
    else:
        value, summed_axes = lowering.partial_sum(op.inputs[0])
    value, summed_axes = moves.carry_out(value, summed_axes)
    lowering.set_sum_over_axes(op.outputs[0], value, summed_axes)


class _Moves:
    """What is to be done with each mesh axis to come from one shape to another.

    The dictionaries go from a mesh axis to the dimension, by its number, that it splits.
    """

    def __init__(
        self, mesh_impl: SpmdMeshImpl, name: str, old_shape: mtf.Shape, new_shape: mtf.Shape
    ) -> None:
        self._mesh_impl = mesh_impl
        self._name = name
        self._old_shape = old_shape
        self._new_shape = new_shape
        self._summed_axes: list[int] = []
        self._is_split_by = _split_dims(mesh_impl, old_shape)
        self._wanted = _split_dims(mesh_impl, new_shape)
        # Where, in the old shape, an axis can split before the reshape what it is to split after.
        self._place_before: dict[int, int] = {}
        for axis, new_dim in self._wanted.items():
            old_dim = old_shape.cumprod_to_tensor_axis(new_shape.cumprod[new_dim])
            size = mesh_impl.shape[axis].size
            if old_dim is not None and old_shape[old_dim].size % size == 0:
                self._place_before[axis] = old_dim
        for axis, dim in self._is_split_by.items():
            wanted = self._wanted.get(axis)
            if wanted is not None and old_shape.cumprod[dim] == new_shape.cumprod[wanted]:
                self._place_before[axis] = dim

    @property
    def communicates(self) -> bool:
        """Whether parts go from processor to processor: then the parts of a sum are added up
        first."""
        return any(self._place_before.get(a) != d for a, d in self._is_split_by.items())

    def carry_out(self, x: tf.Tensor, summed_axes: list[int]) -> tuple[tf.Tensor, list[int]]:
        """The processor's slice in the old shape and layout -> in the new ones.

        Args:
          x: the slice, or its part of a sum over mesh axes.
          summed_axes: these axes.

        Returns:
          the slice or part, and the axes over which it is still to be summed up: not those that
          split the result, along which a reduce-scatter has made the sum.
        """
        self._summed_axes = list(summed_axes)
        x, placed = self._move_before_reshape(x)
        sizes = self._new_shape.to_integer_list
        for axis in placed:
            sizes[self._wanted[axis]] //= self._mesh_impl.shape[axis].size
        x = tf.reshape(x, sizes)
        for axis in sorted(self._wanted.keys() - placed):
            x = self._keep_own_part(x, axis, self._wanted[axis])
        return x, self._summed_axes

    def _move_before_reshape(self, x: tf.Tensor) -> tuple[tf.Tensor, set[int]]:
        """Ends with every axis where it is to be, or nowhere: cheap moves first.

        Returns:
          the slice, and the axes that are where they are to be.
        """
        at = dict(self._is_split_by)
        collectives = self._mesh_impl.collectives
        while True:
            taken = set(at.values())
            free = [
                axis
                for axis, dim in self._place_before.items()
                if at.get(axis) != dim and dim not in taken
            ]
            misplaced = [axis for axis, dim in at.items() if self._place_before.get(axis) != dim]
            new = [axis for axis in free if axis not in at]
            if new:
                axis = new[0]
                at[axis] = self._place_before[axis]
                x = self._keep_own_part(x, axis, at[axis])
            elif free:
                axis = free[0]
                x = collectives.alltoall(x, axis, self._place_before[axis], at[axis])
                at[axis] = self._place_before[axis]
            elif misplaced:
                axis = misplaced[0]
                x = collectives.allgather(x, axis, at.pop(axis))
            else:
                return x, set(at)

    def _keep_own_part(self, x: tf.Tensor, axis: int, dim: int) -> tf.Tensor:
        """Cuts a slice further, along a dimension that no axis splits yet."""
        if axis in self._summed_axes:
            self._summed_axes.remove(axis)
            return self._mesh_impl.collectives.reducescatter(x, axis, dim, [self._name])
        size = x.shape.as_list()
        size[dim] //= self._mesh_impl.shape[axis].size
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[dim] = self._mesh_impl.collectives.coordinate(axis) * size[dim]
        return tf.slice(x, begin, size)


def _split_dims(mesh_impl: SpmdMeshImpl, shape: mtf.Shape) -> dict[int, int]:
    layout = mesh_impl.tensor_layout(shape).tensor_axis_to_mesh_axis
    return {axis: dim for dim, axis in enumerate(layout) if axis is not None}
