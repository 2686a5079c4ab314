"""Keys and values that each processor needs: gathered slices, and heads shared by query heads."""

import math
from collections.abc import Collection

import tensorflow as tf

from t2tp import upstream
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


class SharedHeads:
    """The key-value heads of a processor's slice of the query heads.

    J. Ainslie et al., "GQA" (arXiv:2305.13245). Query head h uses kv head h // (heads / kv_heads).
    If one axis splits both dimensions, or neither is split, each processor has the kv heads that it
    needs. Otherwise split kv heads are all-gathered, and each processor selects the needed heads.
    Their gradient is then a sum over the axis of the query heads.

    Attributes:
      axes: mesh axes over which the gradients w.r.t. kv heads are partial sums.
      gathered: gathers kv heads that are split differently from the query heads.
    """

    def __init__(
        self, mesh_impl: SpmdMeshImpl, heads: upstream.Dimension, kv_heads: upstream.Dimension
    ) -> None:
        self._collectives = mesh_impl.collectives
        self._kv_heads = kv_heads.size
        axis, kv_axis = (mesh_impl.tensor_dimension_to_mesh_axis(d) for d in (heads, kv_heads))
        self.gathered = GatheredDimension(mesh_impl, None if kv_axis == axis else kv_axis)
        self.axes = [] if axis == kv_axis else own_axes(mesh_impl, axis)
        self._chosen = None
        if axis is not None and self.axes:
            (size,) = mesh_impl.slice_shape(upstream.Shape([heads]))
            self._chosen = self._chosen_heads(heads.size // kv_heads.size, size, axis)

    def select(self, x: tf.Tensor) -> tf.Tensor:
        """Selects kv heads from a slice of k or v -> [..., needed kv heads, memory, d]."""
        x = self.gathered.whole(x, _heads(x))
        return x if self._chosen is None else tf.gather(x, self._chosen, axis=_heads(x))

    def restore(self, dx: tf.Tensor, summed: Collection[int]) -> tf.Tensor:
        """Converts the gradient w.r.t. `select(x)` to a partial sum of the gradient w.r.t. x.

        `dx` is a partial sum over the mesh axes `summed`. This method reduces it over `gathered`'s
        axis.
        """
        heads = _heads(dx)
        if self._chosen is not None:
            by_head = tf.transpose(dx, [heads, *range(heads), heads + 1, heads + 2])
            by_head = tf.math.unsorted_segment_sum(by_head, self._chosen, self._kv_heads)
            dx = tf.transpose(by_head, [*range(1, heads + 1), 0, heads + 1, heads + 2])
        return self.gathered.own_part(dx, heads, summed)

    def _chosen_heads(self, shared_by: int, size: int, axis: int) -> tf.Tensor:
        """Returns the indices of the kv heads that this processor's `size` query heads need.

        The query heads are divided into groups, and there is one index for each group. All groups
        have the same size, the largest one at which the query heads of a group share a kv head on
        every processor. Several groups may need the same kv head.
        """
        together = math.gcd(shared_by, size)
        first = self._collectives.coordinate(axis) * size
        return (first + together * tf.range(size // together)) // shared_by


def _heads(x: tf.Tensor) -> int:
    """Returns the dimension of the heads in [..., heads, memory, d]."""
    return x.shape.rank - 3
