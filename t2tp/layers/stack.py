"""Layers one after the other, each adding to what goes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.layers.attention import CrossAttention
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.mixture_of_experts import ExpertSums, MixtureOfExperts
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import AnySelfAttention, Pass
from t2tp.layers.positions import sinusoidal
from t2tp.layers.sequence_parallel import between_blocks, inside_blocks
from t2tp.nearest import nearest

NORM_POSITIONS = ("pre", "post")
RECOMPUTE = ("none", "layer", "attention", "feed_forward")

_Block = Callable[[mtf.Tensor], mtf.Tensor]


class Residual:
    """Adds what a block makes: `x + dropout(block(norm(x)))`, or `norm(x + dropout(block(x)))`."""

    def __init__(
        self,
        norm: Norm,
        norm_position: str,
        dropout: Dropout,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        """Says how.

        Args:
          norm: the norm.
          norm_position: `pre` (R. Xiong et al., arXiv:2002.04745) or `post` (arXiv:1706.03762).
          dropout: of the block's output.
          sequence_parallel: whether the length has another name between blocks; see
            `t2tp.layers.sequence_parallel`.

        Raises:
          ValueError: there is no such position.
        """
        if norm_position not in NORM_POSITIONS:
            known = nearest(norm_position, NORM_POSITIONS, "positions")
            raise ValueError(f"norm_position is {norm_position!r}: {known}")
        self.norm = norm
        self.is_pre = norm_position == "pre"
        self._dropout = dropout
        self._sequence_parallel = sequence_parallel

    def __call__(self, x: mtf.Tensor, block: _Block, training: bool) -> mtf.Tensor:
        """[..., d_model] -> [..., d_model], both as they are between blocks."""
        y = self.inside(self.norm(x) if self.is_pre else x)
        x += self._dropout(self.between(block(y)), training)
        return x if self.is_pre else self.norm(x)

    def between(self, x: mtf.Tensor) -> mtf.Tensor:
        """What a block made, as it is between blocks."""
        return between_blocks(x) if self._sequence_parallel else x

    def inside(self, x: mtf.Tensor) -> mtf.Tensor:
        """What goes through between blocks, as a block takes it."""
        return inside_blocks(x) if self._sequence_parallel else x


@dataclass(frozen=True)
class Layer:
    """The blocks of a layer.

    Attributes:
      self_attention: comes first.
      feed_forward: comes last; or experts.
      cross_attention: comes between, if there is one.
    """

    self_attention: AnySelfAttention
    feed_forward: FeedForward | MixtureOfExperts
    cross_attention: CrossAttention | None = None


class Stack:
    """The layers of an encoder or a decoder, and a norm after them if norms come before blocks."""

    def __init__(
        self,
        layers: Sequence[Layer],
        residual: Residual,
        *,
        share_layers: bool = False,
        recompute: str = "none",
    ) -> None:
        """Says what goes on.

        Args:
          layers: in their order.
          residual: around each block.
          share_layers: whether all have the same variables. Each is then told its number by a
            timing signal: M. Dehghani et al., "Universal Transformers" (arXiv:1807.03819), section
            2.1. They must be alike.
          recompute: whose activations the backward pass computes again instead of keeping them:
            `none`, those of each `layer`, or of its `attention` or `feed_forward` blocks.

        Raises:
          ValueError: there is no such choice.
        """
        if recompute not in RECOMPUTE:
            raise ValueError(f"recompute is {recompute!r}: {nearest(recompute, RECOMPUTE, 'ways')}")
        if share_layers and len({type(layer.feed_forward) for layer in layers}) > 1:
            raise ValueError(
                "share_layers gives all layers the same variables, and some of them have experts:"
                " give experts to all (moe_every=1) or to none."
            )
        self._layers = list(layers)
        self._residual = residual
        self._share_layers = share_layers
        self._recompute = recompute

    def __call__(self, x: mtf.Tensor, way: Pass) -> tuple[mtf.Tensor, list[ExpertSums]]:
        """Goes through the layers.

        Args:
          x: [batch..., d_model].
          way: how attention is carried out; see `Pass`.

        Returns:
          like `x`, and what each layer of experts counted.
        """
        counted = []
        x = self._residual.between(x)
        for number, layer in enumerate(self._layers):
            name = f"layer_{number:02d}"
            if self._share_layers:
                here = mtf.constant(x.mesh, number, dtype=tf.int32)
                x += sinusoidal(here, x.shape.dims[-1], x.dtype)
            with tf1.variable_scope("shared_layer" if self._share_layers else name):
                x, *sums = self._remade("layer", way, lambda x: self._layer(layer, x, way, name))(x)  # noqa: B023
            if sums:
                counted.append(ExpertSums(*sums))
        if self._residual.is_pre:
            with tf1.variable_scope("final"):
                x = self._residual.norm(x)
        return self._residual.inside(x), counted

    def _layer(self, layer: Layer, x: mtf.Tensor, way: Pass, name: str) -> tuple[mtf.Tensor, ...]:
        """One layer: its output, and what its experts counted."""

        def attend(x: mtf.Tensor) -> tuple[mtf.Tensor]:
            with tf1.variable_scope("attention"):
                x = self._residual(
                    x,
                    lambda y: way.self_attention(layer.self_attention, y, f"{name}/self"),
                    way.training,
                )
            cross = layer.cross_attention
            if cross is not None:
                with tf1.variable_scope("cross_attention"):
                    x = self._residual(
                        x, lambda y: way.cross_attention(cross, y, f"{name}/cross"), way.training
                    )
            return (x,)

        def feed_forward(x: mtf.Tensor) -> tuple[mtf.Tensor, ...]:
            return self._feed_forward(layer.feed_forward, x, way)

        (x,) = self._remade("attention", way, attend)(x)
        return self._remade("feed_forward", way, feed_forward)(x)

    def _feed_forward(
        self, network: FeedForward | MixtureOfExperts, x: mtf.Tensor, way: Pass
    ) -> tuple[mtf.Tensor, ...]:
        sums: list[mtf.Tensor] = []

        def block(y: mtf.Tensor) -> mtf.Tensor:
            if isinstance(network, FeedForward):
                return network(y, way.training)
            if way.decoding:
                return network.decode(y)
            made, counted = network(y, way.training, way.is_real())
            sums.extend(counted)
            return made

        is_dense = isinstance(network, FeedForward)
        with tf1.variable_scope("feed_forward" if is_dense else "experts"):
            x = self._residual(x, block, way.training)
        return (x, *sums)

    def _remade(
        self, what: str, way: Pass, fn: Callable[[mtf.Tensor], tuple[mtf.Tensor, ...]]
    ) -> Callable[[mtf.Tensor], tuple[mtf.Tensor, ...]]:
        """`fn`, of which the backward pass computes the inside again, if that is asked for."""
        if self._recompute != what or not way.training:
            return fn
        return lambda x: tuple(mtf.recompute_grad(fn, [x]))
