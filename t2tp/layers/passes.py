"""Forward passes through a stack of layers: full, prefill or decode step.

A decoder runs in three ways on the same variables. In training it runs on whole sequences. A
prefill runs on prompts and stores their keys and values. A decode step runs on one token per row,
which attends to the stored keys and values:

    FullForward    x [batch, length, d_model]
    Prefill        x [batch, prefix_length, d_model]   stores k, v [batch, kv_heads, length, d_kv]
    DecodeStep     x [batch, d_model]                  reads and extends the stored k, v

A forward pass object has the tensors that all layers share: positions, segments, the memory of
cross-attention, the decoding state. Layers are called with x, the forward pass, and their key in
the decoding state.
"""

from dataclasses import dataclass
from typing import TypeAlias

from t2tp import mtf
from t2tp.ops.attention.api import RelativeBias
from t2tp.ops.scatter_update import scatter_update

# The decoding state (key-value caches) by name: [batch..., ...].
DecodeState = dict[str, mtf.Tensor]


@dataclass(frozen=True)
class SequenceInfo:
    """The tokens' positions and segments, for activations [batch..., length, d_model].

    Attributes:
      positions: int32 [batch..., length], each token's position in its segment.
      segments: int32 [batch..., length]. Tokens attend within their segment; padding is segment 0.
        None: all tokens are in segment 1.
    """

    positions: mtf.Tensor
    segments: mtf.Tensor | None = None

    @property
    def length(self) -> mtf.Dimension:
        """The length dimension."""
        return self.positions.shape.dims[-1]


@dataclass(frozen=True)
class EncodedMemory:
    """The sequence that cross-attention attends to, such as an encoder's output.

    Attributes:
      x: [batch..., memory_length, d_model].
      segments: int32 [batch..., memory_length]. Tokens attend to the memory's tokens with the same
        segment number.
    """

    x: mtf.Tensor
    segments: mtf.Tensor


@dataclass(frozen=True)
class FullForward:
    """The forward pass of a full sequence, in training or evaluation.

    Attributes:
      training: whether dropout is on.
      memory: the memory of cross-attention.
      relative_bias: bias of self-attention's scores.
    """

    sequence: SequenceInfo
    training: bool
    memory: EncodedMemory | None = None
    relative_bias: RelativeBias | None = None

    @property
    def length(self) -> mtf.Dimension:
        """The length dimension."""
        return self.sequence.length

    def token_mask(self) -> mtf.Tensor | None:
        """Returns booleans [batch..., length], false for padding; None: no padding."""
        segments = self.sequence.segments
        return None if segments is None else mtf.not_equal(segments, 0)


@dataclass(frozen=True)
class Prefill:
    """The forward pass of prompts. It fills the decoding state.

    Attributes:
      sequence: the prompts' positions, without `segments`: each row is one segment.
      length: the length dimension of the stored keys and values; its size is the max length of a
        row.
      state: the decoding state, filled in place.
    """

    sequence: SequenceInfo
    length: mtf.Dimension
    state: DecodeState
    memory: EncodedMemory | None = None
    relative_bias: RelativeBias | None = None
    training: bool = False

    def store(self, name: str, k: mtf.Tensor, v: mtf.Tensor) -> None:
        """Stores keys and values as `<name>/k` and `<name>/v`."""
        self.state[f"{name}/k"], self.state[f"{name}/v"] = k, v


@dataclass(frozen=True)
class DecodeStep:
    """The forward pass of one token per row. Its keys and values join the decoding state.

    Attributes:
      positions: int32 [batch...], the tokens' positions.
      state: decoding state from `Prefill` or the previous step, updated in place.
      memory_segments: int32 [batch..., memory_length]: 1 for memory, 0 for padding.
    """

    positions: mtf.Tensor
    state: DecodeState
    memory_segments: mtf.Tensor | None = None
    relative_bias: RelativeBias | None = None
    training: bool = False

    def stored(self, name: str) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns a layer's stored keys and values."""
        return self.state[f"{name}/k"], self.state[f"{name}/v"]

    def extend(self, name: str, k: mtf.Tensor, v: mtf.Tensor) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Stores the tokens' keys and values at `positions`; returns all stored keys and values.

        `k` and `v` are [batch..., kv_heads, d_kv or d_v].
        """
        for key, new in (("k", k), ("v", v)):
            cache = self.state[f"{name}/{key}"]
            length = cache.shape.dims[-2]
            self.state[f"{name}/{key}"] = scatter_update(cache, new, self.positions, length)
        return self.stored(name)


ForwardPass: TypeAlias = FullForward | Prefill | DecodeStep
