"""The ways to go through a stack of layers: a whole sequence, or a symbol at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from t2tp import mtf
from t2tp.layers.attention import CrossAttention, Memory, Sequence, State
from t2tp.ops.attention import RelativeBias

T = TypeVar("T")


class AnySelfAttention(Protocol):
    """What `SelfAttention` and `CompressedSelfAttention` have in common."""

    def attend(
        self,
        x: mtf.Tensor,
        sequence: Sequence,
        training: bool,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Reads a whole sequence."""

    def begin(
        self,
        x: mtf.Tensor,
        sequence: Sequence,
        length: mtf.Dimension,
        state: State,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Reads a whole sequence, and keeps what `step` needs of it."""

    def step(
        self,
        x: mtf.Tensor,
        positions: mtf.Tensor,
        state: State,
        name: str,
        relative_bias: RelativeBias | None = None,
    ) -> mtf.Tensor:
        """Reads one symbol of each row."""


class Pass(Protocol):
    """How a stack's attention is carried out, and on what.

    Attributes:
      training: whether dropout is on.
      decoding: whether it is for decoding, where experts turn nobody away.
    """

    @property
    def training(self) -> bool:
        """Whether dropout is on."""

    @property
    def decoding(self) -> bool:
        """Whether it is for decoding."""

    def is_real(self) -> mtf.Tensor | None:
        """Booleans [batch..., length]: where there are symbols; None: everywhere."""

    def self_attention(self, layer: AnySelfAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """Applies a layer to x [batch..., d_model]; `name` tells layers apart in a state."""

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """The same, of attention to the memory."""


@dataclass(frozen=True)
class WholePass:
    """Through a whole sequence, in training or evaluation.

    Attributes:
      sequence: where the symbols stand.
      training: whether dropout is on.
      memory: what cross-attention sees.
      relative_bias: of self-attention.
    """

    sequence: Sequence
    training: bool
    memory: Memory | None = None
    relative_bias: RelativeBias | None = None
    decoding: bool = False

    def is_real(self) -> mtf.Tensor | None:
        """See `Pass`."""
        segments = self.sequence.segments
        return None if segments is None else mtf.not_equal(segments, 0)

    def self_attention(self, layer: AnySelfAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `Pass`."""
        del name
        return layer.attend(x, self.sequence, self.training, self.relative_bias)

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `Pass`."""
        del name
        memory, segments = _given(self.memory), self.sequence.segments
        if segments is None:
            raise ValueError("cross-attention needs the segments of the sequence.")
        return layer.attend(x, segments, memory, self.training)


@dataclass(frozen=True)
class BeginPass:
    """Through what decoding begins with; the state keeps what the steps need.

    Attributes:
      sequence: where the symbols stand; one segment a row.
      length: how many symbols a row will have at most.
      state: is filled.
      memory: what cross-attention sees.
      relative_bias: of self-attention.
    """

    sequence: Sequence
    length: mtf.Dimension
    state: State
    memory: Memory | None = None
    relative_bias: RelativeBias | None = None
    training: bool = False
    decoding: bool = True

    def is_real(self) -> mtf.Tensor | None:
        """See `Pass`."""
        return None

    def self_attention(self, layer: AnySelfAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `Pass`."""
        return layer.begin(x, self.sequence, self.length, self.state, name, self.relative_bias)

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `Pass`."""
        memory = _given(self.memory)
        layer.begin(memory, self.state, name)
        one_segment = mtf.ones_like(self.sequence.positions)
        return layer.attend(x, one_segment, memory, training=False)


@dataclass(frozen=True)
class StepPass:
    """Through one symbol of each row; the state gets it too.

    Attributes:
      positions: int32 [batch...], of the symbols.
      state: of `BeginPass` or of the step before; is changed.
      memory_segments: int32 [batch..., memory_length]: 1 where there is a memory.
      relative_bias: of self-attention.
    """

    positions: mtf.Tensor
    state: State
    memory_segments: mtf.Tensor | None = None
    relative_bias: RelativeBias | None = None
    training: bool = False
    decoding: bool = True

    def is_real(self) -> mtf.Tensor | None:
        """See `Pass`."""
        return None

    def self_attention(self, layer: AnySelfAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `Pass`."""
        return layer.step(x, self.positions, self.state, name, self.relative_bias)

    def cross_attention(self, layer: CrossAttention, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """See `Pass`."""
        return layer.step(x, _given(self.memory_segments), self.state, name)


def _given(memory: T | None) -> T:
    if memory is None:
        raise ValueError("cross-attention needs a memory.")
    return memory
