"""Attention of a sequence to itself or to another one, and of one new symbol to what was before.

Each layer has three faces with the same variables: `attend` reads a whole sequence, `begin` does so
and keeps what decoding needs of it, `step` reads one symbol of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.layers.heads import Heads, padded_to
from t2tp.ops.attention import RelativeBias, attention
from t2tp.ops.attention_step import attention_step
from t2tp.ops.rotary import RotaryScaling, rotary
from t2tp.ops.write_at import write_at

# What decoding remembers, by name: [batch..., ...].
State = dict[str, mtf.Tensor]


@dataclass(frozen=True)
class Sequence:
    """Where the symbols of a tensor [batch..., length, d_model] stand.

    Attributes:
      positions: int32 [batch..., length], of each within its segment.
      segments: int32 [batch..., length]; those of one number see each other; None: all do.
    """

    positions: mtf.Tensor
    segments: mtf.Tensor | None = None

    @property
    def length(self) -> mtf.Dimension:
        """The dimension of the places."""
        return self.positions.shape.dims[-1]


class SelfAttention:
    """Attention of a sequence to itself: full or to a window, causal or both ways."""

    def __init__(
        self,
        heads: Heads,
        *,
        causal: bool,
        window: int | None = None,
        rotary_base: float | None = None,
        rotary_scaling: RotaryScaling | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Says who sees whom.

        Args:
          heads: the projections.
          causal: whether a position sees only itself and those before it.
          window: how many positions it sees, itself included (local attention).
          rotary_base: of rotary positions; None: there are none.
          rotary_scaling: of these, for long texts.
          dropout: of the attention weights.
        """
        self.heads = heads
        self._causal = causal
        self._window = window
        self._rotary_base = rotary_base
        self._rotary_scaling = rotary_scaling
        self._dropout = dropout

    def attend(
        self,
        x: mtf.Tensor,
        sequence: Sequence,
        training: bool,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """[batch..., length, d_model] -> [batch..., length, d_model]."""
        q, k, v = self._project(x, sequence)
        return self._attend(x, q, k, v, sequence, training, relative_bias)

    def begin(
        self,
        x: mtf.Tensor,
        sequence: Sequence,
        length: mtf.Dimension,
        state: State,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """What `attend` gives; keys and values go into the state, as `<name>/k` and `<name>/v`:
        [batch..., kv_heads, length, d_kv], zeros after what there is."""
        q, k, v = self._project(x, sequence)
        state[f"{name}/k"] = padded_to(k, sequence.length, length)
        state[f"{name}/v"] = padded_to(v, sequence.length, length)
        return self._attend(x, q, k, v, sequence, False, relative_bias)

    def step(
        self,
        x: mtf.Tensor,
        positions: mtf.Tensor,
        state: State,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """[batch..., d_model] at `positions`, int32 [batch...] -> the same; the state gets them."""
        q = self.heads.queries(x, None)
        k, v = self.heads.keys_and_values(x, None)
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        length = state[f"{name}/k"].shape.dims[-2]
        for key, new in (("k", k), ("v", v)):
            state[f"{name}/{key}"] = write_at(state[f"{name}/{key}"], new, positions, length)
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
        self, x: mtf.Tensor, sequence: Sequence
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
        sequence: Sequence,
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
        )
        return self.heads.output(attended, x.shape)


@dataclass(frozen=True)
class Memory:
    """Another sequence that is attended to.

    Attributes:
      x: [batch..., memory_length, d_model].
      segments: int32 [batch..., memory_length]: a segment sees that of its own number.
    """

    x: mtf.Tensor
    segments: mtf.Tensor


class CrossAttention:
    """Attention of a sequence to a memory, such as a decoder's to what the encoder made."""

    def __init__(self, heads: Heads, *, dropout: float = 0.0) -> None:
        """Says with what.

        Args:
          heads: the projections.
          dropout: of the attention weights.
        """
        self.heads = heads
        self._dropout = dropout

    def attend(
        self, x: mtf.Tensor, segments: mtf.Tensor, memory: Memory, training: bool
    ) -> mtf.Tensor:
        """[batch..., length, d_model] -> the same; `segments` [batch..., length] are its own."""
        q = self.heads.queries(x, segments.shape.dims[-1])
        k, v = self.heads.keys_and_values(memory.x, memory.segments.shape.dims[-1])
        attended = attention(
            q,
            k,
            v,
            segments=segments,
            memory_segments=memory.segments,
            dropout_rate=self._dropout if training else 0.0,
        )
        return self.heads.output(attended, x.shape)

    def begin(self, memory: Memory, state: State, name: str) -> None:
        """Puts keys and values of the memory into the state, as `<name>/k` and `<name>/v`:
        [batch..., kv_heads, memory_length, d_kv]."""
        k, v = self.heads.keys_and_values(memory.x, memory.segments.shape.dims[-1])
        state[f"{name}/k"], state[f"{name}/v"] = k, v

    def step(
        self, x: mtf.Tensor, memory_segments: mtf.Tensor, state: State, name: str
    ) -> mtf.Tensor:
        """[batch..., d_model] -> the same, from segment 1 of the memory, which `memory_segments`
        [batch..., memory_length] say."""
        attended = attention_step(
            self.heads.queries(x, None),
            state[f"{name}/k"],
            state[f"{name}/v"],
            is_seen=mtf.equal(memory_segments, mtf.constant(x.mesh, 1, dtype=tf.int32)),
        )
        return self.heads.output(attended, x.shape)
