"""Builds the layers of a transformer from its hparams."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers.attention import CrossAttention, SelfAttention
from t2tp.layers.dropout import Dropout
from t2tp.layers.embedding import Embedding
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import RoutingConfig
from t2tp.layers.heads import Heads
from t2tp.layers.mixture_of_experts import MixtureOfExperts
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import DecodeStep, ForwardPass
from t2tp.layers.positions import context_length, learned, relative, sinusoidal
from t2tp.layers.sequence_parallel import BETWEEN, INSIDE, between_blocks
from t2tp.layers.stack import Stack
from t2tp.layers.token_shift import shifted
from t2tp.layers.transformer_layer import Layer, Residual
from t2tp.ops.rotary import RotaryScaling

T = TypeVar("T", SelfAttention, CrossAttention)


class LayerFactory:
    """Creates layers. Variables are created when the layers are applied.

    Attributes:
      d_model: the dimension of activations between layers.
      norm: the norm of residual blocks.
    """

    def __init__(self, hparams: HParams, has_experts: bool) -> None:
        """Reads the hparams.

        `has_experts` says whether every `moe_every`-th layer has experts.

        Raises:
          ValueError: two options contradict each other, or a value is invalid.
        """
        self._hparams = hparams
        self._has_experts = has_experts
        self.d_model = mtf.Dimension("d_model", hparams.d_model)
        broadcast_dims = hparams.layer_prepostprocess_dropout_broadcast_dims
        # Between blocks the length has another name, by which layouts split it.
        if hparams.sequence_parallel:
            broadcast_dims = [BETWEEN if name == INSIDE else name for name in broadcast_dims]
        self._dropout = Dropout(hparams.layer_prepostprocess_dropout, broadcast_dims)
        self.norm = hparams.construct(Norm)
        self._position = hparams.position
        self._context = context_length(hparams)
        self._rotary_scaling = _rotary_scaling(hparams)
        self._check()

    def _check(self) -> None:
        hparams = self._hparams
        if hparams.qk_norm == "projection" and hparams.norm_type == "layer":
            raise ValueError(
                "qk_norm=projection supports norm_type=rms and rms_unit_offset, not layer: set"
                " qk_norm=head, or another norm_type."
            )
        for each in hparams.layer_pattern:
            if each.endswith("_nope") and self._position != "rotary":
                raise ValueError(
                    f"layer_pattern has {each}, a layer without rotary positions, and position is"
                    f" {self._position}: set position=rotary, or {each.removesuffix('_nope')}."
                )
        half = hparams.relative_buckets // 2
        if self._position == "relative" and hparams.relative_max_distance <= half:
            raise ValueError(
                f"relative_max_distance is {hparams.relative_max_distance}, and must be above half"
                f" of relative_buckets, {half}: each of these has a distance of its own."
            )

    def embedding(self, vocab: mtf.Dimension, logits_bias: bool = False) -> Embedding:
        """Returns the token embedding, which also computes logits, with or without a bias."""
        return self._hparams.construct(Embedding, vocab, self.d_model, logits_bias=logits_bias)

    def stack_input(self, x: mtf.Tensor, forward: ForwardPass) -> tuple[mtf.Tensor, ForwardPass]:
        """Returns the inputs of a stack: its activations and the forward pass.

        Adds position encodings to the embeddings, then applies the norm, token shift and dropout.
        With sequence parallelism, renames the length dimension; see `between_blocks`. With relative
        positions, adds the bias of the attention scores to the forward pass.

        Args:
          x: [batch..., length, d_model], the embeddings; in a decode step [batch..., d_model].
          forward: the forward pass, without `relative_bias`.

        Raises:
          ValueError: there are more positions than learned ones.
        """
        # `t2tp.decoding.Decoder` limits the length of decoded sequences.
        if isinstance(forward, DecodeStep):
            positions, longest = forward.positions, 1
        else:
            positions, longest = forward.sequence.positions, forward.length.size
        if self._hparams.sequence_parallel:
            x, positions = between_blocks(x), between_blocks(positions)
        if self._position == "learned":
            if longest > self._context:
                raise ValueError(
                    f"The features have length {longest}, and the model has positions for"
                    f" context_length={self._context}: feed shorter rows, or train with a larger"
                    " context_length."
                )
            stddev = self._hparams.initializer_stddev
            x += learned(positions, self._context, self.d_model, stddev, x.dtype)
        elif self._position == "sinusoidal":
            x += sinusoidal(positions, self.d_model, x.dtype)
        if self._hparams.embedding_norm:
            with tf1.variable_scope("embedding_norm"):
                x = self.norm(x)
        if self._hparams.token_shift:
            x = shifted(x, forward, "embedding", "token_shift")
        if self._position == "relative":
            # One bias for all layers of a stack, as in T5.
            heads = mtf.Dimension("heads", self._hparams.num_heads)
            bias = self._hparams.construct(relative, x.mesh, heads)
            forward = replace(forward, relative_bias=bias)
        return self._dropout(x, forward.training), forward

    def stack(self, num_layers: int, *, causal: bool, cross: bool = False) -> Stack:
        """Returns the stack of an encoder or a decoder; `cross` adds cross-attention to a memory.

        Raises:
          ValueError: a causal stack has experts with expert-choice gating.
        """
        hparams = self._hparams
        if self._has_experts and causal and hparams.moe_gating == "expert_choice":
            raise ValueError(
                "moe_gating=expert_choice looks at the whole sequence, so that a model which"
                " predicts the next token would see it: use top_1, top_2 or top_k."
            )
        # Scales initial values so that the residual stream does not grow with the depth (GPT-2,
        # section 2.3).
        scale = (num_layers * (3 if cross else 2)) ** -0.5
        layers = [
            Layer(
                self._self_attention(number, causal, scale),
                self._feed_forward(number, scale),
                self._attention(CrossAttention, scale) if cross else None,
                self._kind(number),
            )
            for number in range(num_layers)
        ]
        residual = hparams.construct(Residual, norm=self.norm, dropout=self._dropout)
        return hparams.construct(Stack, layers, residual)

    # `construct` reads every parameter that is not given here from the hparam of the same name.
    def _attention(self, kind: Callable[..., T], output_scale: float, **given: Any) -> T:
        """Returns a `SelfAttention` or `CrossAttention`."""
        # `attention` chooses by the lengths and the device, which are not known here.
        method = self._hparams.attention_method
        return self._hparams.construct(
            kind,
            self._heads(output_scale),
            attention_method=None if method == "auto" else method,
            **given,
        )

    def _heads(self, output_scale: float) -> Heads:
        hparams = self._hparams
        use_bias = hparams.attention_bias or hparams.use_bias
        # Qwen 2 has biases in the projections to q, k and v, and none in the output projection.
        return hparams.construct(
            Heads,
            use_bias=use_bias,
            qkv_bias=hparams.qkv_bias or use_bias,
            # "head" as in Qwen 3; "projection" over all heads together, as in OLMo 2.
            norm=None if hparams.qk_norm == "none" else self.norm,
            norm_all_heads=hparams.qk_norm == "projection",
            output_scale=output_scale,
        )

    def _kind(self, number: int) -> str:
        """Returns the kind of a layer in `LAYER_KINDS`; "" if all layers are alike."""
        pattern = self._hparams.layer_pattern
        return pattern[number % len(pattern)] if pattern else ""

    def _self_attention(self, number: int, causal: bool, scale: float) -> SelfAttention:
        hparams = self._hparams
        kind = self._kind(number) or hparams.attention_type
        is_local = kind.startswith("local")
        # Local layers never see far positions, so a base of their own comes without scaling (Gemma
        # 3).
        has_own_base = is_local and hparams.local_rotary_base > 0
        base = hparams.local_rotary_base if has_own_base else hparams.rotary_base
        is_rotary = self._position == "rotary" and not kind.endswith("_nope")
        return self._attention(
            SelfAttention,
            scale,
            causal=causal,
            window=hparams.attention_window if is_local else None,
            rotary_base=base if is_rotary else None,
            rotary_scaling=None if has_own_base else self._rotary_scaling,
        )

    def _feed_forward(self, number: int, scale: float) -> FeedForward | MixtureOfExperts:
        hparams = self._hparams
        network = hparams.construct(
            FeedForward,
            use_bias=hparams.mlp_bias or hparams.use_bias,
            output_scale=scale,
            experts=(),  # `MixtureOfExperts` adds its dimension.
        )
        # The last of each `moe_every` layers has experts: with 2, the second, fourth, ... layer.
        if not self._has_experts or (number + 1) % hparams.moe_every:
            return network
        is_balanced = hparams.moe_balance_rate > 0
        routing = hparams.construct(
            RoutingConfig, hparams.num_experts, prefix="moe_", is_balanced=is_balanced
        )
        return MixtureOfExperts(routing, network, hparams.moe_shared_d_ff)


def _rotary_scaling(hparams: HParams) -> RotaryScaling | None:
    scaling = hparams.construct(RotaryScaling, prefix="rotary_")
    return None if scaling.scaling_factor == 1 else scaling


def shifted_right(
    targets: mtf.Tensor,
    segments: mtf.Tensor | None,
    bos_token_id: int | mtf.Tensor = 0,
    previous: mtf.Tensor | None = None,
) -> mtf.Tensor:
    """Returns the input token of each target: the previous target in the same segment.

    Args:
      targets: integers [batch, length].
      segments: integers [batch, length]; None: each row is one segment.
      bos_token_id: one id for all rows, or integers [batch]; the input of a segment's first target.
      previous: integers [batch]. If not 0, it is the input of the row's first target in place of
        `bos_token_id`.
    """
    length = targets.shape.dims[-1]
    before = mtf.shift(targets, 1, length, wrap=False)
    if segments is None:
        if not bos_token_id:
            return before
        segments = mtf.ones_like(targets)
    segments_before = mtf.shift(segments, 1, length, wrap=False)
    # The last token of a segment must not predict the first of the next, which is unrelated.
    continues = mtf.cast(mtf.equal(segments, segments_before), before.dtype)
    before *= continues
    if bos_token_id:
        before += (1 - continues) * bos_token_id
    if previous is None:
        return before
    # Only the row's first token continues `previous`; other segments begin with BOS.
    is_first = mtf.logical_and(mtf.equal(segments_before, 0), mtf.not_equal(segments, 0))
    known = mtf.cast(mtf.not_equal(previous, 0), before.dtype)
    return before + mtf.cast(is_first, before.dtype) * (known * (previous - bos_token_id))


def token_positions(x: mtf.Tensor) -> mtf.Tensor:
    """Returns the position of each token of [batch, length] in its row, int32."""
    return mtf.broadcast(mtf.range(x.mesh, x.shape.dims[-1], tf.int32), x.shape)
