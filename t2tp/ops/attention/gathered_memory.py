"""Keys and values of the full memory, all-gathered from the processors' slices."""

from collections.abc import Collection, Sequence

import tensorflow as tf

from t2tp.mesh.collectives import head_and_tail
from t2tp.ops.attention import blockwise
from t2tp.ops.attention.blocks import KeyRange
from t2tp.ops.attention.shared_heads import GatheredDimension, SharedHeads

# The index of the dimension to gather: positions, or the blocks that `blockwise.cut` returns.
_POSITIONS, _BLOCKS = 2, 0


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
        slices: int,
        key_block: int,
        *,
        is_head_tail: bool,
    ) -> None:
        """Prepares to gather a memory of `size` keys from `slices` slices.

        `key_block` is the number of keys in a block; 0: the memory is not in blocks.
        """
        self._shared = shared
        self._gathered = gathered
        self._size = size
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

    def gradient_of_slice(self, dx: tf.Tensor, summed: Collection[int]) -> tf.Tensor:
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
