"""The full memory on each processor: keys and values whose slices are all-gathered."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from t2tp.ops.attention import blockwise
from t2tp.ops.attention.shared_heads import SharedHeads
from t2tp.ops.attention.split_kv import GatheredDimension

# The dimension of the positions in [batch, kv_heads, keys, d_kv], and of blocks in blocks of keys.
_POSITIONS, _BLOCKS = 2, 0


class GatheredMemory:
    """All-gathers the slices of keys and values, and reduces the gradients to those of the slices.

    Blockwise attention takes a memory in blocks (`blockwise.cut`). Slices that consist of complete
    blocks are cut before they are gathered, so that nothing larger than a slice is transposed.
    """

    def __init__(
        self, shared: SharedHeads, gathered: GatheredDimension, size: int, keys: int, key_block: int
    ) -> None:
        """Prepares the gathering.

        Args:
          shared: selects the heads.
          gathered: gathers the positions.
          size: number of keys of the memory.
          keys: number of keys of a slice.
          key_block: number of keys of a block; 0: the memory is not in blocks.
        """
        self._shared = shared
        self._gathered = gathered
        self._size = size
        self._keys = keys
        self._block = key_block
        self._travels_in_blocks = key_block > 0 and keys % key_block == 0
        self._dim = _BLOCKS if self._travels_in_blocks else _POSITIONS

    def of_slice(self, x: tf.Tensor) -> tf.Tensor:
        """Gathers keys or values.

        Args:
          x: the slice, [batch, kv_heads, keys, d_kv].

        Returns:
          those of all positions and the heads that the processor needs: [batch, kv_heads, memory,
          d_kv], or in blocks.
        """
        if self._travels_in_blocks:
            x = blockwise.cut(x, self._block)
        x = self._shared.select(self._gathered.whole(x, self._dim))
        if self._block and not self._travels_in_blocks:
            return blockwise.cut(x, self._block)
        return x

    def gradient_of_slice(self, dx: tf.Tensor, summed: Collection[int]) -> tf.Tensor:
        """Converts the gradient w.r.t. `of_slice`'s result to a partial sum of that w.r.t. `x`.

        Args:
          dx: of the shape of the result.
          summed: the mesh's own axes over which it is a partial sum.
        """
        if self._block and not self._travels_in_blocks:
            dx = blockwise.joined(dx, self._size)
        dx = self._gathered.own_part(self._shared.restore(dx, summed), self._dim, summed)
        return blockwise.joined(dx, self._keys) if self._travels_in_blocks else dx
