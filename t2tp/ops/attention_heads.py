"""Heads of keys and values that several heads of queries share, on a mesh."""

from __future__ import annotations

import math
from collections.abc import Collection

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.spmd import SpmdMeshImpl
from t2tp.ops.attention_gathered import Gathered


class SharedHeads:
    """Which heads of k and v go with a processor's slice of the heads of q.

    J. Ainslie et al., "GQA" (arXiv:2305.13245). Query head h has kv head h // (heads / kv_heads).
    Where both dimensions are split over one axis, or neither is, each processor has what it needs.
    Otherwise kv heads that are split are gathered, and of those that are not each processor takes
    its own; the gradient is then a sum over the axis of the query heads.

    Attributes:
      axes: mesh axes over which gradients are still to be summed up.
      gathered: how kv heads that are split elsewhere than the heads of q are put together.
    """

    def __init__(
        self, mesh_impl: SpmdMeshImpl, heads: mtf.Dimension, kv_heads: mtf.Dimension
    ) -> None:
        self._collectives = mesh_impl.collectives
        self._kv_heads = kv_heads.size
        axis, kv_axis = (mesh_impl.tensor_dimension_to_mesh_axis(d) for d in (heads, kv_heads))
        self.gathered = Gathered(mesh_impl, None if kv_axis == axis else kv_axis, 1)
        self.axes = [] if axis in (kv_axis, None) else [axis]
        self._chosen = None
        if self.axes:
            (size,) = mesh_impl.slice_shape(mtf.Shape([heads]))
            self._chosen = self._chosen_heads(heads.size // kv_heads.size, size, axis)

    def select(self, x: tf.Tensor) -> tf.Tensor:
        """The slice of k or v -> [batch, the kv heads needed here, memory, d]."""
        x = self.gathered.whole(x)
        return x if self._chosen is None else tf.gather(x, self._chosen, axis=1)

    def restore(self, dx: tf.Tensor, summed: Collection[int]) -> tf.Tensor:
        """The gradient by what `select` gave -> a part of that by the slice.

        Args:
          dx: [batch, the kv heads needed here, memory, d].
          summed: mesh axes over which it is to be summed up; that of `gathered` then is.
        """
        if self._chosen is not None:
            by_head = tf.transpose(dx, [1, 0, 2, 3])
            by_head = tf.math.unsorted_segment_sum(by_head, self._chosen, self._kv_heads)
            dx = tf.transpose(by_head, [1, 0, 2, 3])
        return self.gathered.own_part(dx, summed)

    def _chosen_heads(self, shared_by: int, size: int, axis: int) -> tf.Tensor:
        """Numbers of the kv heads that `size` heads of this processor need: one for as many heads
        in a row as surely share it."""
        together = math.gcd(shared_by, size)
        first = self._collectives.coordinate(axis) * size
        return (first + together * tf.range(size // together)) // shared_by
