"""Forward passes through a stack of layers: full, prefill or decode step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from t2tp import mtf
from t2tp.layers.attention import CrossAttention, DecodeState, Memory, SequenceInfo
from t2tp.ops.attention.api import RelativeBias

T = TypeVar("T")


class SelfAttentionLayer(Protocol):
    """The interface of self-attention layers."""

    def attend(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        training: bool,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes the attention of a full sequence."""

    def prefill(
        self,
        x: mtf.Tensor,
        sequence: SequenceInfo,
        length: mtf.Dimension,
        state: DecodeState,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes `attend` and stores keys and values in the state."""

    def decode_step(
        self,
        x: mtf.Tensor,
        positions: mtf.Tensor,
        state: DecodeState,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Computes the attention of one token per row."""


class ForwardPass(Protocol):
    """A forward pass: runs the attention layers of a stack.

    Attributes:
      training: whether dropout is on.
      decoding: whether it is for decoding, where experts drop no tokens.
    """

    @property
    def training(self) -> bool:
        """Whether dropout is on."""

    @property
    def decoding(self) -> bool:
        """Whether it is for decoding."""

    def token_mask(self) -> mtf.Tensor | None:
        """Returns booleans [batch..., length], false for padding; None: no padding."""

    def self_attention(self, layer: SelfAttentionLayer, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """Applies a layer to x [batch..., d_model]; `name` is the layer's key in the state."""

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """Applies attention to the memory."""


@dataclass(frozen=True)
class FullForward:
    """The forward pass of a full sequence, in training or evaluation.

    Attributes:
      sequence: positions and segments.
      training: whether dropout is on.
      memory: what cross-attention attends to.
      relative_bias: of self-attention.
    """

    sequence: SequenceInfo
    training: bool
    memory: Memory | None = None
    relative_bias: RelativeBias | None = None
    decoding: bool = False

    def token_mask(self) -> mtf.Tensor | None:
        """See `ForwardPass`."""
        segments = self.sequence.segments
        return None if segments is None else mtf.not_equal(segments, 0)

    def self_attention(self, layer: SelfAttentionLayer, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `ForwardPass`."""
        del name
        return layer.attend(x, self.sequence, self.training, self.relative_bias)

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `ForwardPass`."""
        del name
        memory, segments = _given(self.memory), self.sequence.segments
        if segments is None:
            raise ValueError("cross-attention needs the segments of the sequence.")
        return layer.attend(x, segments, memory, self.training)


@dataclass(frozen=True)
class Prefill:
    """The forward pass of prompts, which fills the decoding state.

    Attributes:
      sequence: positions; each row is one segment.
      length: the max length of a row.
      state: the decoding state, filled in place.
      memory: what cross-attention attends to.
      relative_bias: of self-attention.
    """

    sequence: SequenceInfo
    length: mtf.Dimension
    state: DecodeState
    memory: Memory | None = None
    relative_bias: RelativeBias | None = None
    training: bool = False
    decoding: bool = True

    def token_mask(self) -> mtf.Tensor | None:
        """See `ForwardPass`."""
        return None

    def self_attention(self, layer: SelfAttentionLayer, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `ForwardPass`."""
        return layer.prefill(x, self.sequence, self.length, self.state, name, self.relative_bias)

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `ForwardPass`."""
        memory = _given(self.memory)
        layer.prefill(memory, self.state, name)
        one_segment = mtf.ones_like(self.sequence.positions)
        return layer.attend(x, one_segment, memory, training=False)


@dataclass(frozen=True)
class DecodeStep:
    """The forward pass of one token per row, which is added to the decoding state.

    Attributes:
      positions: int32 [batch...], of the tokens.
      state: from `Prefill` or the previous step, updated in place.
      memory_segments: int32 [batch..., memory_length]: 1 for memory, 0 for padding.
      relative_bias: of self-attention.
    """

    positions: mtf.Tensor
    state: DecodeState
    memory_segments: mtf.Tensor | None = None
    relative_bias: RelativeBias | None = None
    training: bool = False
    decoding: bool = True

    def token_mask(self) -> mtf.Tensor | None:
        """See `ForwardPass`."""
        return None

    def self_attention(self, layer: SelfAttentionLayer, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `ForwardPass`."""
        return layer.decode_step(x, self.positions, self.state, name, self.relative_bias)

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `ForwardPass`."""
        return layer.decode_step(x, _given(self.memory_segments), self.state, name)


def _given(memory: T | None) -> T:
    if memory is None:
        raise ValueError("cross-attention needs a memory.")
    return memory
