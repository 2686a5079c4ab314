"""Keys and values that each processor needs: gathered slices, and heads shared by query heads."""

import math
from collections.abc import Collection, Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.mesh.collectives import head_and_tail
from t2tp.ops.attention import blockwise
from t2tp.ops.attention.blocks import KeyRange

# The index of the dimension to gather: positions, or the blocks that `blockwise.cut` returns.
_POSITIONS, _BLOCKS = 2, 0


class GatheredDimension:
    """All-gathers the slices along a mesh axis, and converts the gradient back to a slice.

    Attributes:
      axis: the mesh axis, possibly a joint one; None: the dimension is not split.
      axes: the single axes of the mesh that `axis` consists of.
      slices: number of slices.
    """

    def __init__(self, mesh_impl: SpmdMeshImpl, axis: int | None) -> None:
        """Takes the mesh axis that splits the dimension, or None."""
        self._collectives = mesh_impl.collectives
        self.axis = axis
        self.slices = 1 if axis is None else mesh_impl.shape[axis].size
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
        size[dim] //= self.slices
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


class GatheredMemory:
    """All-gathers the slices of keys and values, and reduce-scatters their gradients.

    Blockwise attention needs a memory in blocks (`blockwise.cut`). Slices that consist of complete
    blocks are cut before the gather, so that each processor transposes only its slice. The gathered
    blocks stay in the order of the slices.
    """

    def __init__(
        self,
        shared: SharedHeads,
        gathered: GatheredDimension,
        size: int,
        key_block: int,
        *,
        is_head_tail: bool,
    ) -> None:
        """Prepares to gather a memory of `size` keys.

        `key_block` is the number of keys in a block; 0: the memory is not in blocks.
        """
        self._shared = shared
        self._gathered = gathered
        self._size = size
        slices = gathered.slices
        self._slice_size = size // slices
        self._block = key_block
        # The all-gather returns the parts of the memory in this order.
        self._parts = [*range(slices)]
        if is_head_tail:
            self._parts = [part for i in self._parts for part in head_and_tail(i, slices)]
        part_size = size // len(self._parts)
        self._travels_in_blocks = key_block > 0 and part_size % key_block == 0
        places = None
        if self._travels_in_blocks:
            self._dim = _BLOCKS
            if is_head_tail:
                blocks = range(part_size // key_block)
                places = [at * len(blocks) + i for at in _inverted(self._parts) for i in blocks]
        else:
            self._dim = _POSITIONS
        self.keys = KeyRange(size, places=places)

    def of_slice(self, x: tf.Tensor) -> tf.Tensor:
        """Gathers keys or values from a slice x [batch, kv_heads, keys, d_kv].

        The result is [batch, needed kv_heads, memory, d_kv], or this tensor in blocks.
        """
        if self._travels_in_blocks:
            x = blockwise.cut(x, self._block)
        x = self._shared.select(self._gathered.whole(x, self._dim))
        if self._travels_in_blocks:
            return x
        x = _permuted(x, _inverted(self._parts))
        return blockwise.cut(x, self._block) if self._block else x

    def restore(self, dx: tf.Tensor, summed: Collection[int]) -> tf.Tensor:
        """Returns this processor's partial sum of the gradient w.r.t. the input of `of_slice`.

        `dx` is the gradient w.r.t. the result. It is a partial sum over the mesh axes `summed`.
        """
        if not self._travels_in_blocks:
            if self._block:
                dx = blockwise.joined(dx, self._size)
            dx = _permuted(dx, self._parts)
        dx = self._gathered.own_part(self._shared.restore(dx, summed), self._dim, summed)
        return blockwise.joined(dx, self._slice_size) if self._travels_in_blocks else dx


def _inverted(permutation: Sequence[int]) -> list[int]:
    return sorted(range(len(permutation)), key=permutation.__getitem__)


def _permuted(x: tf.Tensor, parts: Sequence[int]) -> tf.Tensor:
    """Divides a tensor along its positions into equal parts, and puts these into another order."""
    if list(parts) == sorted(parts):
        return x
    cut = tf.split(x, len(parts), _POSITIONS)
    return tf.concat([cut[part] for part in parts], _POSITIONS)
