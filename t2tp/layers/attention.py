"""Self-attention and cross-attention, on a full sequence or one token at a time.

Each layer has three methods on the same variables: `attend` reads a full sequence, `prefill` also
fills the decoding state, and `decode_step` reads one token per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.layers.heads import Heads, padded_to
from t2tp.ops.attention.api import AttentionMethod, RelativeBias, attention
from t2tp.ops.attention.decode_step import attention_step
from t2tp.ops.rotary import RotaryScaling, rotary
from t2tp.ops.scatter_update import scatter_update

# The decoding state (key-value caches) by name: [batch..., ...].
DecodeState = dict[str, mtf.Tensor]


@dataclass(frozen=True)
class SequenceInfo:
    """Positions and segments of the tokens of a tensor [batch..., length, d_model].

    Attributes:
      positions: int32 [batch..., length], within each token's segment.
      segments: int32 [batch..., length]; tokens attend within their segment. None: one segment.
    """

    positions: mtf.Tensor
    segments: mtf.Tensor | None = None

    @property
    def length(self) -> mtf.Dimension:
        """The length dimension."""
        return self.positions.shape.dims[-1]


class SelfAttention:
    """Self-attention: full or within a window, causal or bidirectional."""

    def __init__(
        self,
        heads: Heads,
        *,
        causal: bool,
        window: int | None = None,
        rotary_base: float | None = None,
        rotary_scaling: RotaryScaling | None = None,
        dropout: float = 0.0,
        method: AttentionMethod | None = None,
    ) -> None:
        """Sets projections, mask, rotary positions and dropout.

        Args:
          heads: the projections.
          causal: whether a position attends only to itself and earlier ones.
          window: how many positions it attends to, itself included (local attention).
          rotary_base: base of rotary positions; None: no rotary positions.
          rotary_scaling: of rotary positions, for long sequences.
          dropout: of the attention weights.
          method: how attention is computed, see `attention`.
        """
        self.heads = heads
        self._causal = causal
        self._window = window
        self._rotary_base = rotary_base
        self._rotary_scaling = rotary_scaling
        self._dropout = dropout
        self._method = method

    def attend(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        training: bool,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes [batch..., length, d_model] -> [batch..., length, d_model]."""
        q, k, v = self._project(x, sequence)
        return self._attend(x, q, k, v, sequence, training, relative_bias)

    def prefill(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        length: mtf.Dimension,
        state: DecodeState,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes `attend` and stores keys and values in the state.

        They are `<name>/k` and `<name>/v`: [batch..., kv_heads, length, d_kv], zero-padded.
        """
        q, k, v = self._project(x, sequence)
        state[f"{name}/k"] = padded_to(k, sequence.length, length)
        state[f"{name}/v"] = padded_to(v, sequence.length, length)
        return self._attend(x, q, k, v, sequence, False, relative_bias)

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
        q = self.heads.queries(x, None)
        k, v = self.heads.keys_and_values(x, None)
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        length = state[f"{name}/k"].shape.dims[-2]
        for key, new in (("k", k), ("v", v)):
            state[f"{name}/{key}"] = scatter_update(state[f"{name}/{key}"], new, positions, length)
        attended = attention_step(
            q,
            state[f"{name}/k"],
            state[f"{name}/v"],
            positions=positions,
            window=self._window,
            relative_bias=relative_bias,
        )
        return self.heads.output(attended, x.shape)

    def _project(
        self, x: mtf.Tensor, sequence: SequenceInfo
    ) -> tuple[mtf.Tensor, mtf.Tensor, mtf.Tensor]:
        q = self.heads.queries(x, sequence.length)
        k, v = self.heads.keys_and_values(x, sequence.length)
        return self._rotated(q, sequence.positions), self._rotated(k, sequence.positions), v

    def _rotated(self, x: mtf.Tensor, positions: mtf.Tensor) -> mtf.Tensor:
        if self._rotary_base is None:
            return x
        return rotary(x, positions, self._rotary_base, self._rotary_scaling)

    def _attend(
        self,
        x: mtf.Tensor,
        q: mtf.Tensor,
        k: mtf.Tensor,
        v: mtf.Tensor,
        sequence: SequenceInfo,
        training: bool,
        relative_bias: RelativeBias | None,
    ) -> mtf.Tensor:
        attended = attention(
            q,
            k,
            v,
            causal=self._causal,
            window=self._window,
            segments=sequence.segments,
            relative_bias=relative_bias,
            dropout_rate=self._dropout if training else 0.0,
            method=self._method,
        )
        return self.heads.output(attended, x.shape)


@dataclass(frozen=True)
class Memory:
    """The sequence that cross-attention attends to, such as an encoder's output.

    Attributes:
      x: [batch..., memory_length, d_model].
      segments: int32 [batch..., memory_length]: a segment attends to the one of its number.
    """

    x: mtf.Tensor
    segments: mtf.Tensor


class CrossAttention:
    """Attention of a sequence to a memory, such as a decoder's to the encoder's output."""

    def __init__(
        self, heads: Heads, *, dropout: float = 0.0, method: AttentionMethod | None = None
    ) -> None:
        """Sets projections and dropout.

        Args:
          heads: the projections.
          dropout: of the attention weights.
          method: how attention is computed, see `attention`.
        """
        self.heads = heads
        self._dropout = dropout
        self._method = method

    def attend(
        self, x: mtf.Tensor, segments: mtf.Tensor, memory: Memory, training: bool
    ) -> mtf.Tensor:
        """Computes [batch..., length, d_model] -> [batch..., length, d_model].

        `segments` [batch..., length] are those of `x`.
        """
        q = self.heads.queries(x, segments.shape.dims[-1])
        k, v = self.heads.keys_and_values(memory.x, memory.segments.shape.dims[-1])
        attended = attention(
            q,
            k,
            v,
            segments=segments,
            memory_segments=memory.segments,
            dropout_rate=self._dropout if training else 0.0,
            method=self._method,
        )
        return self.heads.output(attended, x.shape)

    def prefill(self, memory: Memory, state: DecodeState, name: str) -> None:
        """Stores keys and values of the memory in the state.

        They are `<name>/k` and `<name>/v`: [batch..., kv_heads, memory_length, d_kv].
        """
        k, v = self.heads.keys_and_values(memory.x, memory.segments.shape.dims[-1])
        state[f"{name}/k"], state[f"{name}/v"] = k, v

    def decode_step(
        self, x: mtf.Tensor, memory_segments: mtf.Tensor, state: DecodeState, name: str
    ) -> mtf.Tensor:
        """Computes [batch..., d_model] -> [batch..., d_model].

        Attends to segment 1 of `memory_segments` [batch..., memory_length].
        """
        attended = attention_step(
            self.heads.queries(x, None),
            state[f"{name}/k"],
            state[f"{name}/v"],
            is_seen=mtf.equal(memory_segments, mtf.constant(x.mesh, 1, dtype=tf.int32)),
        )
        return self.heads.output(attended, x.shape)
