"""A split dimension of keys and values that each processor needs whole."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from t2tp.mesh.spmd import SpmdMeshImpl


class Gathered:
    """Puts the slices along a mesh axis together, and takes the gradient apart again.

    Attributes:
      axis: the mesh axis; None: the dimension is not split.
    """

    def __init__(self, mesh_impl: SpmdMeshImpl, axis: int | None, dim: int) -> None:
        """Says what is gathered.

        Args:
          mesh_impl: the processor's.
          axis: the mesh axis that splits the dimension, or None.
          dim: the dimension's place in slices.
        """
        self._mesh_impl = mesh_impl
        self._collectives = mesh_impl.collectives
        self.axis = axis
        self._dim = dim

    def whole(self, x: tf.Tensor) -> tf.Tensor:
        """A slice [..., n, ...] -> [..., slices * n, ...]."""
        return x if self.axis is None else self._collectives.allgather(x, self.axis, self._dim)

    def own_part(self, dx: tf.Tensor, summed: Collection[int]) -> tf.Tensor:
        """The gradient by what `whole` gave -> that by the slice.

        Args:
          dx: [..., slices * n, ...].
          summed: mesh axes over which `dx` is still to be summed up. If `axis` is one of them it is
            here; otherwise all along it have the same.
        """
        if self.axis is None:
            return dx
        if self.axis in summed:
            return self._collectives.reducescatter(dx, self.axis, self._dim)
        size = dx.shape.as_list()
        size[self._dim] //= self._mesh_impl.shape[self.axis].size
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[self._dim] = self._collectives.coordinate(self.axis) * size[self._dim]
        return tf.slice(dx, begin, size)
