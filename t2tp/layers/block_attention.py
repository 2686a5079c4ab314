"""Local self-attention of a sequence or an image, in blocks that a mesh can split."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.layers.heads import Heads
from t2tp.layers.passes import DecodeStep, ForwardPass, Prefill
from t2tp.ops.attention.decode_step import attention_step
from t2tp.ops.attention.local_attention import local_attention, visible_positions


class BlockAttention:
    """Causal attention to positions of the same block and of earlier neighbouring blocks.

    See `t2tp.ops.attention.local_attention`. An image is [batch..., height, width, d_model], with
    positions numbered row by row. Keys and values are stored as in `SelfAttention`.
    """

    def __init__(self, heads: Heads, space: Sequence[mtf.Dimension], block: Sequence[int]) -> None:
        """Sets projections, space ([length] or [height, width]) and the block size along it."""
        self._heads = heads
        self._space = list(space)
        self._block = list(block)

    def __call__(self, x: mtf.Tensor, forward: ForwardPass, name: str) -> mtf.Tensor:
        """See `AttentionLayer`. Outside decode steps, a position is its index in `space`."""
        if isinstance(forward, DecodeStep):
            return self._decode_step(x, forward, name)
        q = self._heads.queries(x, self._space[-1])
        k, v = self._heads.keys_and_values(x, self._space[-1])
        if isinstance(forward, Prefill):
            batch = [dim for dim in x.shape.dims[:-1] if dim not in self._space]
            heads, d_kv = self._heads.kv_heads, self._heads.d_kv
            in_order = [mtf.transpose(kv, [*batch, heads, *self._space, d_kv]) for kv in (k, v)]
            stored_shape = [*batch, heads, forward.length, d_kv]
            forward.store(name, *(mtf.reshape(kv, stored_shape) for kv in in_order))
        k, v = (self._heads.for_each_query(tensor) for tensor in (k, v))
        attended = local_attention(q, k, v, self._space, self._block)
        return self._heads.output(attended, x.shape)

    def _decode_step(self, x: mtf.Tensor, forward: DecodeStep, name: str) -> mtf.Tensor:
        q = self._heads.queries(x, None)
        k, v = forward.extend(name, *self._heads.keys_and_values(x, None))
        positions, length = forward.positions, k.shape.dims[-2]
        is_seen = mtf.slicewise(
            lambda query_positions, memory_positions: visible_positions(
                query_positions, memory_positions, self._block, self._space[-1].size
            ),
            [positions, mtf.range(x.mesh, length, tf.int32)],
            output_shape=positions.shape + length,
            output_dtype=tf.bool,
            splittable_dims=[*positions.shape.dims, length],
            name="is_seen",
        )
        attended = attention_step(q, k, v, is_seen=is_seen)
        return self._heads.output(attended, x.shape)
