"""A stack of residual layers: a transformer's encoder or decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.choices import NORM_POSITIONS, RECOMPUTE
from t2tp.layers.attention import CrossAttention
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.mixture_of_experts import ExpertSums, MixtureOfExperts
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import ForwardPass, SelfAttentionLayer
from t2tp.layers.positions import sinusoidal
from t2tp.layers.sequence_parallel import between_blocks, inside_blocks
from t2tp.suggestions import nearest

_Block = Callable[[mtf.Tensor], mtf.Tensor]


class Residual:
    """A residual block: `x + dropout(block(norm(x)))`, or `norm(x + dropout(block(x)))`."""

    def __init__(
        self,
        norm: Norm,
        norm_position: str,
        dropout: Dropout,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        """Sets norm, its position and dropout.

        Args:
          norm: the norm.
          norm_position: `pre` (R. Xiong et al., arXiv:2002.04745) or `post` (arXiv:1706.03762).
          dropout: of the block's output.
          sequence_parallel: whether the length has another name between blocks; see
            `t2tp.layers.sequence_parallel`.

        Raises:
          ValueError: the position is unknown.
        """
        if norm_position not in NORM_POSITIONS:
            known = nearest(norm_position, NORM_POSITIONS, "positions")
            raise ValueError(f"norm_position is {norm_position!r}: {known}")
        self.norm = norm
        self.is_pre = norm_position == "pre"
        self._dropout = dropout
        self._sequence_parallel = sequence_parallel

    def __call__(self, x: mtf.Tensor, block: _Block, training: bool) -> mtf.Tensor:
        """Computes [..., d_model] -> [..., d_model], both with the length's name between blocks."""
        y = self.inside(self.norm(x) if self.is_pre else x)
        x += self._dropout(self.between(block(y)), training)
        return x if self.is_pre else self.norm(x)

    def between(self, x: mtf.Tensor) -> mtf.Tensor:
        """Renames the length of a block's output to its name between blocks."""
        return between_blocks(x) if self._sequence_parallel else x

    def inside(self, x: mtf.Tensor) -> mtf.Tensor:
        """Renames the length of a block's input to its name inside of blocks."""
        return inside_blocks(x) if self._sequence_parallel else x


@dataclass(frozen=True)
class Layer:
    """The blocks of a layer.

    Attributes:
      self_attention: the first block.
      feed_forward: the last block, possibly a mixture of experts.
      cross_attention: the block in between; None: none.
    """

    self_attention: SelfAttentionLayer
    feed_forward: FeedForward | MixtureOfExperts
    cross_attention: CrossAttention | None = None


class Stack:
    """The layers of an encoder or a decoder, with a final norm if blocks are pre-norm."""

    def __init__(
        self,
        layers: Sequence[Layer],
        residual: Residual,
        *,
        share_layers: bool = False,
        recompute: str = "none",
    ) -> None:
        """Sets layers, residual blocks and recomputation.

        Args:
          layers: in order.
          residual: wraps each block.
          share_layers: whether all layers share their variables. A timing signal then tells each
            its index: M. Dehghani et al., "Universal Transformers" (arXiv:1807.03819), section 2.1.
            The layers must be of one kind.
          recompute: the activations that the backward pass recomputes instead of storing: `none`,
            those of each `layer`, or of its `attention` or `feed_forward` blocks.

        Raises:
          ValueError: the choice is unknown, or shared layers differ in kind.
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

    def __call__(self, x: mtf.Tensor, way: ForwardPass) -> tuple[mtf.Tensor, list[ExpertSums]]:
        """Applies the layers.

        Args:
          x: [batch..., d_model].
          way: the forward pass; see `ForwardPass`.

        Returns:
          like `x`, and the statistics of each mixture-of-experts layer.
        """
        counted = []
        x = self._residual.between(x)
        for number, layer in enumerate(self._layers):
            name = f"layer_{number:02d}"
            if self._share_layers:
                here = mtf.constant(x.mesh, number, dtype=tf.int32)
                x += sinusoidal(here, x.shape.dims[-1], x.dtype)
            with tf1.variable_scope("shared_layer" if self._share_layers else name):
                whole = partial(self._layer, layer, way=way, name=name)
                x, *sums = self._recomputed("layer", way, whole)(x)
            if sums:
                counted.append(ExpertSums(*sums))
        if self._residual.is_pre:
            with tf1.variable_scope("final"):
                x = self._residual.norm(x)
        return self._residual.inside(x), counted

    def _layer(
        self, layer: Layer, x: mtf.Tensor, way: ForwardPass, name: str
    ) -> tuple[mtf.Tensor, ...]:
        """Applies a layer; returns its output and the statistics of its experts."""

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

        (x,) = self._recomputed("attention", way, attend)(x)
        return self._recomputed("feed_forward", way, feed_forward)(x)

    def _feed_forward(
        self, network: FeedForward | MixtureOfExperts, x: mtf.Tensor, way: ForwardPass
    ) -> tuple[mtf.Tensor, ...]:
        sums: list[mtf.Tensor] = []

        def block(y: mtf.Tensor) -> mtf.Tensor:
            if isinstance(network, FeedForward):
                return network(y, way.training)
            if way.decoding:
                return network.decode(y)
            made, counted = network(y, way.training, way.token_mask())
            sums.extend(counted)
            return made

        is_dense = isinstance(network, FeedForward)
        with tf1.variable_scope("feed_forward" if is_dense else "experts"):
            x = self._residual(x, block, way.training)
        return (x, *sums)

    def _recomputed(
        self, what: str, way: ForwardPass, fn: Callable[[mtf.Tensor], tuple[mtf.Tensor, ...]]
    ) -> Callable[[mtf.Tensor], tuple[mtf.Tensor, ...]]:
        """Returns `fn`, with its activations recomputed in the backward pass if configured."""
        if self._recompute != what or not way.training:
            return fn
        return lambda x: tuple(mtf.recompute_grad(fn, [x]))
