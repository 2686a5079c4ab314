"""Gathers a split dimension of keys and values that each processor needs in full."""

from collections.abc import Collection

import tensorflow as tf

from t2tp.lowering.mesh_impl import SpmdMeshImpl


class GatheredDimension:
    """All-gathers the slices along a mesh axis, and returns the gradient of the own slice.

    Attributes:
      axis: the mesh axis; None: the dimension is not split.
      axes: the mesh's own axes that it consists of.
    """

    def __init__(self, mesh_impl: SpmdMeshImpl, axis: int | None) -> None:
        """Takes the mesh axis that splits the dimension, or None."""
        self._mesh_impl = mesh_impl
        self._collectives = mesh_impl.collectives
        self.axis = axis
        self.axes = own_axes(mesh_impl, axis)

    def whole(self, x: tf.Tensor, dim: int) -> tf.Tensor:
        """Gathers a slice [..., n, ...] -> [..., slices * n, ...]; n is its dimension `dim`."""
        return x if self.axis is None else self._collectives.allgather(x, self.axis, dim)

    def own_part(self, dx: tf.Tensor, dim: int, summed: Collection[int]) -> tf.Tensor:
        """Converts the gradient w.r.t. the result of `whole` to that w.r.t. the slice.

        Args:
          dx: [..., slices * n, ...].
          dim: the same as in `whole`.
          summed: the mesh's own axes over which `dx` is a partial sum. Over those that `axis`
            consists of it is reduced here; along the others of these `dx` is the same.
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
    """Returns the mesh's own axes that an axis consists of, if any."""
    return [] if axis is None else mesh_impl.layout.axes.separate([axis])
