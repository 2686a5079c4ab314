"""The position-wise feed-forward network of a transformer."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from t2tp import mtf
from t2tp.building.mesh import context_of
from t2tp.choices import GATED_MLPS, MLPS, PLAIN_MLPS
from t2tp.layers import variables
from t2tp.layers.dropout import Dropout
from t2tp.layers.linear import linear
from t2tp.ops import activations
from t2tp.ops.expert_network import ExpertNetworkOperation
from t2tp.suggestions import check_known


def activation_of(mlp: str) -> Callable[[mtf.Tensor], mtf.Tensor]:
    """Returns the activation function of a network, or of its gate; see `FeedForward`.

    Raises:
      ValueError: `mlp` is unknown.
    """
    check_known(mlp, MLPS, "networks", f"mlp is {mlp!r}")
    name = (PLAIN_MLPS | GATED_MLPS)[mlp].replace("clamped_swiglu", "swish")
    return getattr(activations, name, None) or getattr(mtf, name)


def _gated(mlp: str, gate: mtf.Tensor, hidden: mtf.Tensor) -> mtf.Tensor:
    if mlp == "clamped_swiglu":
        return mtf.cwise(activations.clamped_swiglu, [gate, hidden])
    return activation_of(mlp)(gate) * hidden


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward network: two matrices with an activation between them, or three with a gate.

    `relu`, `gelu` (tanh approximation), `gelu_erf` (exact) and `silu` compute `activation(x input)
    output`. `swiglu` and `geglu` (N. Shazeer, arXiv:2002.05202) compute `(activation(x gate) *
    x input) output`. `clamped_swiglu` is gpt-oss's form (`t2tp.ops.activations.clamped_swiglu`).

    Attributes:
      mlp: one of `t2tp.choices.MLPS`.
      d_ff: the hidden size.
      use_bias: whether to add a bias after each matrix.
      relu_dropout: dropout rate of the hidden activations, as tensor2tensor names it.
      output_scale: factor of the initial values of `output`.
      experts: dimensions of `x` along which each index has its own variables.
    """

    mlp: str
    d_ff: int
    _: KW_ONLY
    use_bias: bool = False
    relu_dropout: float = 0.0
    output_scale: float = 1.0
    experts: Sequence[mtf.Dimension] = ()

    def __post_init__(self) -> None:
        """Raises ValueError if the name is unknown."""
        activation_of(self.mlp)

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Computes [..., d_model] -> [..., d_model].

        The variables are `input`, `output`, `gate` in gated networks, and their biases.
        """
        d_model, d_ff = x.shape.dims[-1], mtf.Dimension("d_ff", self.d_ff)
        hidden = self._times(x, "input", d_ff, d_model.size**-0.5)
        if self.mlp in GATED_MLPS:
            gate = self._times(x, "gate", d_ff, d_model.size**-0.5)
            hidden = _gated(self.mlp, gate, hidden)
        else:
            hidden = activation_of(self.mlp)(hidden)
        hidden = Dropout(self.relu_dropout)(hidden, training)
        stddev = self.d_ff**-0.5 * self.output_scale
        return self._times(hidden, "output", d_model, stddev)

    def chosen(self, x: mtf.Tensor, choices: mtf.Tensor, gates: mtf.Tensor) -> mtf.Tensor:
        """Applies each token's chosen experts, without a capacity; see `t2tp.ops.expert_network`.

        Dropout, and adapters on feed-forward layers, are not supported.

        Args:
          x: [..., d_model].
          choices: int32 [..., k], the experts of each token.
          gates: float32 [..., k], the factors of the experts' outputs.

        Raises:
          ValueError: the network has dropout, or adapters on feed-forward layers.
        """
        adapters = context_of(x.mesh).adapters
        if self.relu_dropout or (adapters is not None and "feed_forward" in adapters.targets):
            raise ValueError(
                "moe_dispatch=dropless supports neither relu_dropout nor feed_forward among"
                " lora_targets: use moe_dispatch=capacity."
            )
        d_model, d_ff = x.shape.dims[-1], mtf.Dimension("d_ff", self.d_ff)
        sizes = {"input": (d_model, d_ff), "output": (d_ff, d_model)}
        if self.mlp in GATED_MLPS:
            sizes["gate"] = sizes["input"]
        weights = {}
        for name, (dim, to) in sizes.items():
            scale = self.output_scale if name == "output" else 1.0
            weights[name] = variables.matrix(
                x.mesh, name, [dim], [to], scale * dim.size**-0.5, x.dtype, experts=self.experts
            )
            if self.use_bias:
                weights[f"{name}_bias"] = variables.bias(
                    x.mesh, f"{name}_bias", [to], x.dtype, experts=self.experts
                )
        return ExpertNetworkOperation(x, choices, gates, weights, self.mlp).outputs[0]

    def _times(self, x: mtf.Tensor, name: str, to: mtf.Dimension, stddev: float) -> mtf.Tensor:
        """Multiplies by a variable: [..., d] -> [..., to]."""
        dim = x.shape.dims[-1]
        return linear(
            x,
            name,
            [dim],
            [to],
            stddev=stddev,
            output_shape=x.shape - dim + to,
            target="feed_forward",
            bias=f"{name}_bias" if self.use_bias else "",
            experts=self.experts,
        )
