"""Self-attention, full or in blocks, and cross-attention, in all forward passes."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import tensorflow as tf

from t2tp import mtf
from t2tp.layers.heads import Heads, padded_to
from t2tp.layers.passes import DecodeStep, ForwardPass, Prefill
from t2tp.layers.token_shift import shifted
from t2tp.ops.attention.api import AttentionMethod, attention
from t2tp.ops.attention.decode_step import attention_step
from t2tp.ops.attention.local_attention import local_attention, visible_positions
from t2tp.ops.rotary import RotaryScaling, rotary


class AttentionLayer(Protocol):
    """The interface of attention layers."""

    def __call__(self, x: mtf.Tensor, forward: ForwardPass, name: str) -> mtf.Tensor:
        """Maps activations to attention outputs of the same shape.

        Args:
          x: [batch..., length, d_model]; in a decode step [batch..., d_model].
          forward: the forward pass.
          name: the layer's key in the decoding state.
        """


@dataclass(frozen=True)
class SelfAttention:
    """Self-attention: full or within a window, causal or bidirectional.

    `Prefill` stores keys and values [batch..., kv_heads, length, d_kv or d_v], zero-padded.

    Attributes:
      heads: the projections.
      causal: whether a position attends only to itself and to earlier positions.
      window: number of positions that a position attends to, itself included; None: all.
      rotary_base: base of rotary positions; None: no rotary positions.
      rotary_scaling: scaling of rotary positions for long sequences.
      rotary_fraction: fraction of each head's elements that are rotated.
      attention_soft_cap: see `attention`.
      attention_dropout: dropout rate of the attention weights.
      attention_method: see `attention`.
      token_shift: whether keys and values are shifted; see `t2tp.layers.token_shift`.
    """

    heads: Heads
    _: KW_ONLY
    causal: bool
    window: int | None = None
    rotary_base: float | None = None
    rotary_scaling: RotaryScaling | None = None
    rotary_fraction: float = 1.0
    attention_soft_cap: float = 0.0
    attention_dropout: float = 0.0
    attention_method: AttentionMethod | None = None
    token_shift: bool = False

    def __call__(self, x: mtf.Tensor, forward: ForwardPass, name: str) -> mtf.Tensor:
        """See `AttentionLayer`."""
        length: mtf.Dimension | None = None
        if isinstance(forward, DecodeStep):
            positions = forward.positions
        else:
            positions, length = forward.sequence.positions, forward.sequence.length
        q = self.heads.queries(x, length)
        k, v = self.heads.keys_and_values(x, length)
        if self.token_shift:
            k, v = shifted(k, forward, name, "k_shift"), shifted(v, forward, name, "v_shift")
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        sinks = self.heads.sinks(x.mesh)
        if isinstance(forward, DecodeStep):
            attended = attention_step(
                q,
                *forward.extend(name, k, v),
                positions=positions,
                window=self.window,
                relative_bias=forward.relative_bias,
                soft_cap=self.attention_soft_cap,
                sinks=sinks,
            )
            return self.heads.output(attended, x.shape)
        if isinstance(forward, Prefill):
            prefix = forward.sequence.length
            forward.store(name, *(padded_to(kv, prefix, forward.length) for kv in (k, v)))
        attended = attention(
            q,
            k,
            v,
            causal=self.causal,
            window=self.window,
            segments=forward.sequence.segments,
            relative_bias=forward.relative_bias,
            soft_cap=self.attention_soft_cap,
            sinks=sinks,
            dropout_rate=self.attention_dropout if forward.training else 0.0,
            method=self.attention_method,
        )
        return self.heads.output(attended, x.shape)

    def _rotated(self, x: mtf.Tensor, positions: mtf.Tensor) -> mtf.Tensor:
        if self.rotary_base is None:
            return x
        return rotary(x, positions, self.rotary_base, self.rotary_scaling, self.rotary_fraction)


@dataclass(frozen=True)
class CrossAttention:
    """Attention from a decoder to a memory, such as the encoder's output.

    `Prefill` stores the memory's keys and values [batch..., kv_heads, memory_length, d_kv or d_v].
    A decode step attends to the memory's positions with segment number 1. For the attributes see
    `SelfAttention`.
    """

    heads: Heads
    _: KW_ONLY
    attention_soft_cap: float = 0.0
    attention_dropout: float = 0.0
    attention_method: AttentionMethod | None = None

    def __call__(self, x: mtf.Tensor, forward: ForwardPass, name: str) -> mtf.Tensor:
        """See `AttentionLayer`."""
        if isinstance(forward, DecodeStep):
            if forward.memory_segments is None:
                raise ValueError("cross-attention needs a memory.")
            one = mtf.constant(x.mesh, 1, dtype=tf.int32)
            attended = attention_step(
                self.heads.queries(x, None),
                *forward.stored(name),
                is_seen=mtf.equal(forward.memory_segments, one),
                soft_cap=self.attention_soft_cap,
                sinks=self.heads.sinks(x.mesh),
            )
            return self.heads.output(attended, x.shape)
        memory = forward.memory
        if memory is None:
            raise ValueError("cross-attention needs a memory.")
        segments = forward.sequence.segments
        if segments is None:
            segments = mtf.ones_like(forward.sequence.positions)
        q = self.heads.queries(x, segments.shape.dims[-1])
        # The gradient w.r.t. the memory is a sum over layers. The reshape gives each layer its own
        # tensor, whose gradient is this layer's addend: `exact_sums` requires a separate sum.
        each = mtf.reshape(memory.x, memory.x.shape)
        k, v = self.heads.keys_and_values(each, memory.segments.shape.dims[-1])
        if isinstance(forward, Prefill):
            forward.store(name, k, v)
        attended = attention(
            q,
            k,
            v,
            segments=segments,
            memory_segments=memory.segments,
            soft_cap=self.attention_soft_cap,
            sinks=self.heads.sinks(x.mesh),
            dropout_rate=self.attention_dropout if forward.training else 0.0,
            method=self.attention_method,
        )
        return self.heads.output(attended, x.shape)


@dataclass(frozen=True)
class BlockAttention:
    """Causal attention to positions of the same block and of earlier neighbouring blocks.

    See `t2tp.ops.attention.local_attention`. An image is [batch..., height, width, d_model], with
    positions numbered row by row. Keys and values are stored as in `SelfAttention`.

    Attributes:
      heads: the projections.
      space: [length] or [height, width].
      block: the size of a block along each dimension of `space`.
    """

    heads: Heads
    space: Sequence[mtf.Dimension]
    block: Sequence[int]

    def __call__(self, x: mtf.Tensor, forward: ForwardPass, name: str) -> mtf.Tensor:
        """See `AttentionLayer`. Outside decode steps, a position is its index in `space`."""
        if isinstance(forward, DecodeStep):
            return self._decode_step(x, forward, name)
        q = self.heads.queries(x, self.space[-1])
        k, v = self.heads.keys_and_values(x, self.space[-1])
        if isinstance(forward, Prefill):
            batch = [dim for dim in x.shape.dims[:-1] if dim not in self.space]
            heads, d_kv = self.heads.kv_heads, self.heads.d_kv
            in_order = [mtf.transpose(kv, [*batch, heads, *self.space, d_kv]) for kv in (k, v)]
            stored_shape = [*batch, heads, forward.length, d_kv]
            forward.store(name, *(mtf.reshape(kv, stored_shape) for kv in in_order))
        k, v = (self.heads.for_each_query(tensor) for tensor in (k, v))
        attended = local_attention(q, k, v, self.space, self.block)
        return self.heads.output(attended, x.shape)

    def _decode_step(self, x: mtf.Tensor, forward: DecodeStep, name: str) -> mtf.Tensor:
        q = self.heads.queries(x, None)
        k, v = forward.extend(name, *self.heads.keys_and_values(x, None))
        positions, length = forward.positions, k.shape.dims[-2]
        is_seen = mtf.slicewise(
            lambda query_positions, memory_positions: visible_positions(
                query_positions, memory_positions, self.block, self.space[-1].size
            ),
            [positions, mtf.range(x.mesh, length, tf.int32)],
            output_shape=positions.shape + length,
            output_dtype=tf.bool,
            splittable_dims=[*positions.shape.dims, length],
            name="is_seen",
        )
        attended = attention_step(q, k, v, is_seen=is_seen)
        return self.heads.output(attended, x.shape)
