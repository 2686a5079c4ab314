"""Local self-attention of a sequence or an image, in blocks that a mesh can split."""

from __future__ import annotations

from collections.abc import Sequence as Sizes

import tensorflow as tf

from t2tp import mtf
from t2tp.layers.attention import DecodeState, SequenceInfo
from t2tp.layers.heads import Heads
from t2tp.ops.attention.api import RelativeBias
from t2tp.ops.attention.decode_step import attention_step
from t2tp.ops.attention.local_attention import local_attention, visible_positions
from t2tp.ops.scatter_update import scatter_update


class BlockAttention:
    """Causal attention of each block to itself and its neighbours.

    See `t2tp.ops.attention.local_attention`. The interface is that of `SelfAttention`. For an
    image, x is [batch..., height, width, d_model], and positions are numbered row by row.
    """

    def __init__(self, heads: Heads, space: Sizes[mtf.Dimension], block: Sizes[int]) -> None:
        """Sets projections and blocks.

        Args:
          heads: the projections.
          space: [length], or [height, width].
          block: the size of a block along each of them.
        """
        self._heads = heads
        self._space = list(space)
        self._block = list(block)

    def attend(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        training: bool,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes [batch..., space..., d_model] -> [batch..., space..., d_model].

        `sequence` is ignored: positions follow from `space`.
        """
        del sequence, training, relative_bias
        q = self._heads.queries(x, self._space[-1])
        k, v = self._heads.keys_and_values(x, self._space[-1])
        return self._attend(x, q, k, v)

    def prefill(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        length: mtf.Dimension,
        state: DecodeState,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes `attend` on x with all positions and stores keys and values in the state.

        They are `<name>/k` and `<name>/v`: [batch..., kv_heads, length, d_kv].
        """
        del sequence, relative_bias
        q = self._heads.queries(x, self._space[-1])
        k, v = self._heads.keys_and_values(x, self._space[-1])
        batch = [dim for dim in x.shape.dims[:-1] if dim not in self._space]
        heads, d_kv = self._heads.kv_heads, self._heads.d_kv
        for key, tensor in (("k", k), ("v", v)):
            in_order = mtf.transpose(tensor, [*batch, heads, *self._space, d_kv])
            state[f"{name}/{key}"] = mtf.reshape(in_order, [*batch, heads, length, d_kv])
        return self._attend(x, q, k, v)

    def decode_step(
        self,
        x: mtf.Tensor,
        positions: mtf.Tensor,
        state: DecodeState,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes [batch..., d_model] -> [batch..., d_model] for one token per row.

        Adds the keys and values of the tokens at `positions`, int32 [batch...], to the state.
        """
        del relative_bias
        q = self._heads.queries(x, None)
        length = state[f"{name}/k"].shape.dims[-2]
        for key, new in zip(("k", "v"), self._heads.keys_and_values(x, None), strict=True):
            state[f"{name}/{key}"] = scatter_update(state[f"{name}/{key}"], new, positions, length)
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
        attended = attention_step(q, state[f"{name}/k"], state[f"{name}/v"], is_seen=is_seen)
        return self._heads.output(attended, x.shape)

    def _attend(self, x: mtf.Tensor, q: mtf.Tensor, k: mtf.Tensor, v: mtf.Tensor) -> mtf.Tensor:
        k, v = (self._heads.for_each_query(tensor) for tensor in (k, v))
        attended = local_attention(q, k, v, self._space, self._block)
        return self._heads.output(attended, x.shape)
