"""Gathers a split dimension of keys and values that each processor needs in full."""

from collections.abc import Collection

import tensorflow as tf

from t2tp.lowering.mesh_impl import SpmdMeshImpl


class GatheredDimension:
    """All-gathers the slices along a mesh axis, and converts the gradient back to a slice.

    Attributes:
      axis: the mesh axis, possibly a joint one; None: the dimension is not split.
      axes: the single axes of the mesh that `axis` consists of.
    """

    def __init__(self, mesh_impl: SpmdMeshImpl, axis: int | None) -> None:
        """Takes the mesh axis that splits the dimension, or None."""
        self._mesh_impl = mesh_impl
        self._collectives = mesh_impl.collectives
        self.axis = axis
        self.axes = own_axes(mesh_impl, axis)

    def whole(self, x: tf.Tensor, dim: int) -> tf.Tensor:
        """Gathers dimension `dim` of a slice: [..., n, ...] -> [..., slices * n, ...]."""
        return x if self.axis is None else self._collectives.allgather(x, self.axis, dim)

    def own_part(self, dx: tf.Tensor, dim: int, summed: Collection[int]) -> tf.Tensor:
        """Converts the gradient w.r.t. the result of `whole` to the gradient w.r.t. the slice.

        `dx` is a partial sum over the mesh axes `summed`. This method sums `dx` over the axes that
        are in both `summed` and `self.axes`. Along all other axes in `self.axes`, processors have
        equal `dx`.
        """
        if self.axis is None:
            return dx
        reduced = [axis for axis in self.axes if axis in summed]
        if len(reduced) == len(self.axes):
            return self._collectives.reducescatter(dx, self.axis, dim)
        dx = self._collectives.allreduce(dx, reduced, "Add")
        size = dx.shape.as_list()
        size[dim] //= self._mesh_impl.shape[self.axis].size
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[dim] = self._collectives.coordinate(self.axis) * size[dim]
        return tf.slice(dx, begin, size)


def own_axes(mesh_impl: SpmdMeshImpl, axis: int | None) -> list[int]:
    """Returns the single axes of the mesh that an axis consists of; none for None."""
    return [] if axis is None else mesh_impl.layout.axes.separate([axis])
