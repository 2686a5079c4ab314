"""Token embeddings and logits."""

import functools
from dataclasses import KW_ONLY, dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.layers import variables
from t2tp.ops.gather import checked_gather
from t2tp.ops.variables.transfer import ratio


@dataclass(frozen=True)
class Projection:
    """Operands of the output projection, from which logits are computed at once or chunk by chunk.

    Attributes:
      x: [..., d_model].
      table: [vocab, d_model].
      bias: [vocab]; None: no bias.
      soft_cap: logits `z` become `soft_cap * tanh(z / soft_cap)`; 0: no cap.
    """

    x: mtf.Tensor
    table: mtf.Tensor
    bias: mtf.Tensor | None
    soft_cap: float = 0.0

    @property
    def vocab(self) -> mtf.Dimension:
        """The dimension of the tokens."""
        return self.table.shape.dims[0]

    @functools.cached_property
    def logits(self) -> mtf.Tensor:
        """The logits, [..., vocab]."""
        shape = self.x.shape - self.x.shape.dims[-1] + self.vocab
        logits = mtf.einsum([self.x, self.table], output_shape=shape)
        if self.bias is not None:
            logits = mtf.add(logits, self.bias, output_shape=shape)
        cap = self.soft_cap
        return mtf.tanh(logits * (1 / cap)) * cap if cap else logits


@dataclass(frozen=True)
class Embedding:
    """Token embedding and output projection to logits.

    If the layout splits `vocab`, the lookup and the matmul are divided among the processors.

    Attributes:
      stddev: standard deviation of the initial values.
      is_tied: whether logits use the embedding table (O. Press and L. Wolf, arXiv:1608.05859), not
        the separate table `output_embedding`.
      is_scaled: whether looked-up vectors are multiplied by sqrt(d_model), as in tensor2tensor
        (arXiv:1706.03762, section 3.4).
      has_bias: whether logits have a bias, `logits_bias`.
      are_logits_scaled: whether x is divided by sqrt(d_model) before the projection to logits.
      multiplier: additional factor of looked-up vectors.
      logits_divisor: additional divisor of x before the projection.
      logits_soft_cap: see `Projection`.
    """

    vocab: mtf.Dimension
    d_model: mtf.Dimension
    _: KW_ONLY
    stddev: float
    is_tied: bool = True
    is_scaled: bool = False
    has_bias: bool = False
    are_logits_scaled: bool = False
    multiplier: float = 1.0
    logits_divisor: float = 1.0
    logits_soft_cap: float = 0.0

    def __call__(self, tokens: mtf.Tensor, dtype: tf.DType) -> mtf.Tensor:
        """Looks up integers [...] -> [..., d_model] in the current scope's variable `embedding`."""
        x = checked_gather(self._table(tokens.mesh, "embedding", dtype), tokens, self.vocab)
        factor = self.multiplier
        if self.is_scaled:
            # With `transfer_from`, the factor uses the small model's d_model; see
            # `t2tp.ops.variables.transfer`.
            factor *= (self.d_model.size / ratio(x.mesh, "d_model")) ** 0.5
        return x if factor == 1.0 else x * factor

    def logits(self, x: mtf.Tensor) -> mtf.Tensor:
        """Computes [..., d_model] -> [..., vocab]."""
        return self.projection(x).logits

    def projection(self, x: mtf.Tensor) -> Projection:
        """Returns the `Projection` of x [..., d_model]."""
        name = "embedding" if self.is_tied else "output_embedding"
        wider = ratio(x.mesh, "d_model")  # Scales by 1 / width (arXiv:2203.03466, table 8).
        factor = 1 / (wider * self.logits_divisor)
        if self.are_logits_scaled:
            factor *= (self.d_model.size / wider) ** -0.5
        if factor != 1.0:
            x *= factor
        table = self._table(x.mesh, name, x.dtype)
        bias = None
        if self.has_bias:
            bias = variables.bias(x.mesh, "logits_bias", [self.vocab], x.dtype)
        return Projection(x, table, bias, self.logits_soft_cap)

    def _table(self, mesh: mtf.Mesh, name: str, dtype: tf.DType) -> mtf.Tensor:
        return variables.embedding(mesh, name, [self.vocab], self.d_model, self.stddev, dtype)
