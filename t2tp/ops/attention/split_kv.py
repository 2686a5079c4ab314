"""Gathers a split dimension of keys and values that each processor needs in full."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from t2tp.lowering.mesh_impl import SpmdMeshImpl


class GatheredDimension:
    """All-gathers the slices along a mesh axis, and returns the gradient of the own slice.

    Attributes:
      axis: the mesh axis; None: the dimension is not split.
      axes: the mesh's own axes that it consists of.
    """

    def __init__(self, mesh_impl: SpmdMeshImpl, axis: int | None, dim: int) -> None:
        """Prepares the gathering of a dimension.

        Args:
          mesh_impl: the processor's.
          axis: the mesh axis that splits the dimension, or None.
          dim: the dimension's index in slices.
        """
        self._mesh_impl = mesh_impl
        self._collectives = mesh_impl.collectives
        self.axis = axis
        self.axes = own_axes(mesh_impl, axis)
        self._dim = dim

    def whole(self, x: tf.Tensor) -> tf.Tensor:
        """Gathers a slice [..., n, ...] -> [..., slices * n, ...]."""
        return x if self.axis is None else self._collectives.allgather(x, self.axis, self._dim)

    def own_part(self, dx: tf.Tensor, summed: Collection[int]) -> tf.Tensor:
        """Converts the gradient w.r.t. the result of `whole` to that w.r.t. the slice.

        Args:
          dx: [..., slices * n, ...].
          summed: the mesh's own axes over which `dx` is a partial sum. Over those that `axis`
            consists of it is reduced here; along the others of these `dx` is the same.
        """
        if self.axis is None:
            return dx
        reduced = [axis for axis in self.axes if axis in summed]
        if len(reduced) == len(self.axes):
            return self._collectives.reducescatter(dx, self.axis, self._dim)
        dx = self._collectives.allreduce(dx, reduced, "Add")
        size = dx.shape.as_list()
        size[self._dim] //= self._mesh_impl.shape[self.axis].size
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[self._dim] = self._collectives.coordinate(self.axis) * size[self._dim]
        return tf.slice(dx, begin, size)


def own_axes(mesh_impl: SpmdMeshImpl, axis: int | None) -> list[int]:
    """Returns the mesh's own axes that an axis consists of, if any."""
    return [] if axis is None else mesh_impl.layout.axes.separate([axis])
