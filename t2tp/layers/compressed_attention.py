"""Memory-compressed attention: keys and values are blocks of positions."""

from __future__ import annotations

import tensorflow as tf

from t2tp import mtf
from t2tp.layers import variables
from t2tp.layers.attention import DecodeState, SequenceInfo
from t2tp.layers.heads import Heads, padded_to
from t2tp.ops.attention.api import AttentionMethod, RelativeBias, attention
from t2tp.ops.attention.decode_step import attention_step
from t2tp.ops.gather import checked_gather
from t2tp.ops.scatter_update import scatter_update


class CompressedSelfAttention:
    """Self-attention whose keys and values are compressed by a strided convolution.

    P. Liu et al., "Generating Wikipedia by Summarizing Long Sequences" (arXiv:1801.10198), section
    4.2.3: the kernel is as wide as the stride, and mixes within a head. It is meant to alternate
    with local attention: incomplete blocks are invisible, and so are blocks that begin in another
    segment. Blocks are aligned to the beginning of the row, so a packed document is divided into
    other blocks than alone. The interface is that of `SelfAttention`.
    """

    def __init__(
        self,
        heads: Heads,
        *,
        causal: bool,
        factor: int,
        dropout: float = 0.0,
        method: AttentionMethod | None = None,
    ) -> None:
        """Sets projections, mask, compression and dropout.

        Args:
          heads: the projections.
          causal: whether a position attends only to blocks that end at or before it.
          factor: positions per key.
          dropout: of the attention weights.
          method: how attention is computed, see `attention`.

        Raises:
          ValueError: the factor is below 2.
        """
        if factor < 2:
            raise ValueError(f"a compression factor must be at least 2, not {factor}.")
        self.heads = heads
        self._causal = causal
        self._factor = factor
        self._dropout = dropout
        self._method = method

    def attend(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        training: bool,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes [batch..., length, d_model] -> [batch..., length, d_model].

        Raises:
          ValueError: a relative bias is given: blocks have no distances.
        """
        _refuse(relative_bias)
        k, v = self.heads.keys_and_values(x, sequence.length)
        return self._attend(
            x, self._compressed(k, "k"), self._compressed(v, "v"), sequence, training
        )

    def prefill(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        length: mtf.Dimension,
        state: DecodeState,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes `attend` and stores keys and values in the state, of positions and of blocks."""
        _refuse(relative_bias)
        blocks = mtf.Dimension("compressed_length", length.size // self._factor)
        compressed_kv = []
        for key, values in zip("kv", self.heads.keys_and_values(x, sequence.length), strict=True):
            compressed = self._compressed(values, key)
            compressed_kv.append(compressed)
            state[f"{name}/{key}"] = padded_to(values, sequence.length, length)
            state[f"{name}/{key}_blocks"] = padded_to(compressed, compressed.shape.dims[-2], blocks)
        return self._attend(x, compressed_kv[0], compressed_kv[1], sequence, False)

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
        _refuse(relative_bias)
        for key, new in zip("kv", self.heads.keys_and_values(x, None), strict=True):
            values = state[f"{name}/{key}"]
            values = scatter_update(values, new, positions, values.shape.dims[-2])
            state[f"{name}/{key}"] = values
            # Updates the position's block, which is masked until it is complete.
            state[f"{name}/{key}_blocks"] = self._with_block(
                state[f"{name}/{key}_blocks"], values, positions, key
            )
        attended = attention_step(
            self.heads.queries(x, None),
            state[f"{name}/k_blocks"],
            state[f"{name}/v_blocks"],
            positions=positions,
            memory_stride=self._factor,
        )
        return self.heads.output(attended, x.shape)

    def _with_block(
        self, blocks: mtf.Tensor, values: mtf.Tensor, positions: mtf.Tensor, key: str
    ) -> mtf.Tensor:
        """Recomputes the block of a position.

        Trailing positions, which fill no block, recompute the last block, which does not change.
        """
        dim, length = blocks.shape.dims[-2], values.shape.dims[-2]
        index = mtf.minimum(mtf.floordiv(positions, self._factor), dim.size - 1)
        within = mtf.Dimension("compression", self._factor)
        block_positions = mtf.add(
            index * self._factor,
            mtf.range(values.mesh, within, tf.int32),
            output_shape=index.shape + within,
        )
        *batch, kv_heads, _, d_kv = values.shape.dims
        block = checked_gather(
            values,
            block_positions,
            length,
            output_shape=mtf.Shape([*batch, kv_heads, within, d_kv]),
        )
        return scatter_update(blocks, self._convolved(block, key, blocks.shape - dim), index, dim)

    def _compressed(self, x: mtf.Tensor, key: str) -> mtf.Tensor:
        """Computes [batch..., kv_heads, length, d_kv] -> [..., compressed_length, d_kv]."""
        *first, length, d_kv = x.shape.dims
        blocks = mtf.Dimension("compressed_length", length.size // self._factor)
        within = mtf.Dimension("compression", self._factor)
        x = _first(x, length, blocks.size * self._factor)
        x = mtf.reshape(x, mtf.Shape([*first, blocks, within, d_kv]))
        return self._convolved(x, key, mtf.Shape([*first, blocks, d_kv]))

    def _convolved(self, x: mtf.Tensor, key: str, shape: mtf.Shape) -> mtf.Tensor:
        """Contracts the compression of [..., compression, d_kv]; the result has `shape`."""
        within, d_kv = x.shape.dims[-2:]
        to = mtf.Dimension("d_kv_compressed", d_kv.size)
        stddev = (within.size * d_kv.size) ** -0.5
        matrix = variables.matrix(
            x.mesh,
            f"{key}_compression",
            [within, d_kv],
            [to],
            stddev,
            x.dtype,
            experts=[self.heads.kv_heads],
        )
        y = mtf.einsum([x, matrix], output_shape=mtf.Shape([*shape.dims[:-1], to]))
        return mtf.reshape(y, shape)

    def _attend(
        self, x: mtf.Tensor, k: mtf.Tensor, v: mtf.Tensor, sequence: SequenceInfo, training: bool
    ) -> mtf.Tensor:
        memory_segments = None
        if sequence.segments is not None:
            memory_segments = self._block_segments(sequence.segments, k.shape.dims[-2])
        attended = attention(
            self.heads.queries(x, sequence.length),
            k,
            v,
            causal=self._causal,
            memory_stride=self._factor,
            segments=sequence.segments,
            memory_segments=memory_segments,
            dropout_rate=self._dropout if training else 0.0,
            method=self._method,
        )
        return self.heads.output(attended, x.shape)

    def _block_segments(self, segments: mtf.Tensor, blocks: mtf.Dimension) -> mtf.Tensor:
        """Returns the segment of each block; -1, which matches none, for a block of several."""
        *batch, length = segments.shape.dims
        within = mtf.Dimension("compression", self._factor)
        complete = _first(segments, length, blocks.size * self._factor)
        cut = mtf.reshape(complete, mtf.Shape([*batch, blocks, within]))
        lowest = mtf.reduce_min(cut, reduced_dim=within)
        highest = mtf.reduce_max(cut, reduced_dim=within)
        return mtf.where(mtf.equal(lowest, highest), lowest, mtf.zeros_like(lowest) - 1)


def _first(x: mtf.Tensor, dim: mtf.Dimension, size: int) -> mtf.Tensor:
    """Returns the first `size` elements along a dimension."""
    return x if size == dim.size else mtf.slice(x, 0, size, dim.name)


def _refuse(relative_bias: RelativeBias | None) -> None:
    if relative_bias is not None:
        raise ValueError(
            "memory-compressed attention has no distances: use learned or sinusoidal positions"
            " instead of relative ones."
        )
