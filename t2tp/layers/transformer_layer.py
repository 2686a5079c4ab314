"""A layer of a transformer: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import context_of
from t2tp.building.transfer import DEPTH
from t2tp.choices import NORM_POSITIONS
from t2tp.layers.attention import AttentionLayer, CrossAttention
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.mixture_of_experts import MixtureOfExperts
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import ForwardPass, FullForward
from t2tp.layers.sequence_parallel import between_blocks, inside_blocks
from t2tp.suggestions import check_known

_Block = Callable[[mtf.Tensor], mtf.Tensor]
# x -> output, then the fields of `ExpertSums` if the part of the network has experts.
_Part = Callable[[mtf.Tensor], tuple[mtf.Tensor, ...]]


@dataclass(frozen=True)
class Residual:
    """A residual connection around a block, with dropout and norms.

    The position of the norm selects the formula:

        pre     x + block(norm(x))
        post    norm(x + block(x))
        output  x + norm(block(x))
        both    x + output_norm(block(norm(x)))

    `output_norm` has its own variables, in the scope `output_norm`.

    Attributes:
      norm_position: `pre` (R. Xiong et al., arXiv:2002.04745), `post` (arXiv:1706.03762), `output`
        (OLMo 2, arXiv:2501.00656) or `both` (Gemma 2, arXiv:2408.00118).
      dropout: dropout of the block's output.
      residual_multiplier: factor of the block's output. With `transfer_from`, it is divided by the
        growth of the depth; see `t2tp.building.transfer`.
      sequence_parallel: see `t2tp.layers.sequence_parallel`.
    """

    norm: Norm
    norm_position: str
    dropout: Dropout
    residual_multiplier: float = 1.0
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError if the position is unknown."""
        sentence = f"norm_position is {self.norm_position!r}"
        check_known(self.norm_position, NORM_POSITIONS, "positions", sentence)

    def __call__(self, x: mtf.Tensor, block: _Block, training: bool) -> mtf.Tensor:
        """Maps x [..., d_model] to the same shape, where the length has its name between blocks."""
        y = self.inside(self.norm(x) if self.norm_position in ("pre", "both") else x)
        y = self.between(block(y))
        if self.norm_position == "output":
            y = self.norm(y)
        elif self.norm_position == "both":
            with tf1.variable_scope("output_norm"):
                y = self.norm(y)
        y = self.dropout(y, training)
        factor = self.residual_multiplier / context_of(x.mesh).ratio(DEPTH)
        x += y if factor == 1 else y * factor
        return self.norm(x) if self.norm_position == "post" else x

    def between(self, x: mtf.Tensor) -> mtf.Tensor:
        """Renames the length of a block's output to its name between blocks."""
        return between_blocks(x) if self.sequence_parallel else x

    def inside(self, x: mtf.Tensor) -> mtf.Tensor:
        """Renames the length of a block's input to its name inside blocks."""
        return inside_blocks(x) if self.sequence_parallel else x


@dataclass(frozen=True)
class Layer:
    """The blocks of a layer.

    Attributes:
      feed_forward: the last block, possibly a mixture of experts.
      pattern: the layer's kind in `t2tp.choices.LAYER_KINDS`; "" if all layers are alike.
    """

    self_attention: AttentionLayer
    feed_forward: FeedForward | MixtureOfExperts
    cross_attention: CrossAttention | None = None
    pattern: str = ""

    @property
    def kind(self) -> tuple[object, ...]:
        """The types of the blocks and the pattern: layers of one kind differ only in variables."""
        blocks = self.self_attention, self.feed_forward, self.cross_attention
        return *map(type, blocks), self.pattern

    def apply(
        self,
        x: mtf.Tensor,
        forward: ForwardPass,
        name: str,
        residual: Residual,
        recompute: str = "none",
    ) -> tuple[mtf.Tensor, ...]:
        """Applies the blocks to [batch..., d_model]; `name` is the layer's key in decoding states.

        For `recompute` see `Stack`; only `attention` and `feed_forward` have an effect here.

        Returns:
          a tensor like `x`; in a layer with experts, followed by the fields of `ExpertSums`.
        """

        def attend(x: mtf.Tensor) -> tuple[mtf.Tensor]:
            with tf1.variable_scope("attention"):
                x = residual(
                    x, lambda y: self.self_attention(y, forward, f"{name}/self"), forward.training
                )
            cross = self.cross_attention
            if cross is not None:
                with tf1.variable_scope("cross_attention"):
                    x = residual(x, lambda y: cross(y, forward, f"{name}/cross"), forward.training)
            return (x,)

        def feed_forward(x: mtf.Tensor) -> tuple[mtf.Tensor, ...]:
            return self._apply_feed_forward(x, forward, residual)

        (x,) = (recomputed(attend, forward) if recompute == "attention" else attend)(x)
        if recompute == "feed_forward":
            return recomputed(feed_forward, forward)(x)
        return feed_forward(x)

    def _apply_feed_forward(
        self, x: mtf.Tensor, forward: ForwardPass, residual: Residual
    ) -> tuple[mtf.Tensor, ...]:
        network = self.feed_forward
        sums: list[mtf.Tensor] = []

        def block(y: mtf.Tensor) -> mtf.Tensor:
            if isinstance(network, FeedForward):
                return network(y, forward.training)
            if not isinstance(forward, FullForward):  # Decoding drops no tokens.
                return network.decode(y)
            output, expert_sums = network(y, forward.training, forward.token_mask())
            sums.extend(expert_sums)
            return output

        is_dense = isinstance(network, FeedForward)
        with tf1.variable_scope("feed_forward" if is_dense else "experts"):
            x = residual(x, block, forward.training)
        return (x, *sums)


def recomputed(part: _Part, forward: ForwardPass) -> _Part:
    """Returns `part` with its activations recomputed in the backward pass, if there is one."""
    if not forward.training:
        return part
    return lambda x: tuple(mtf.recompute_grad(part, [x]))
