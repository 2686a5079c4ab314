"""Token embeddings and logits."""

import functools
from dataclasses import KW_ONLY, dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import context_of
from t2tp.layers import variables


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
      initializer_stddev: standard deviation of the initial values.
      tie_embeddings: whether logits use the embedding table (O. Press and L. Wolf,
        arXiv:1608.05859), not the separate table `output_embedding`.
      scale_embeddings: whether looked-up vectors are multiplied by sqrt(d_model), as in
        tensor2tensor (arXiv:1706.03762, section 3.4).
      logits_bias: whether logits have a bias, `logits_bias`.
      scale_decoder_outputs: whether x is divided by sqrt(d_model) before the projection to logits.
      embedding_multiplier: additional factor of looked-up vectors.
      logits_divisor: additional divisor of x before the projection.
      logits_soft_cap: see `Projection`.
    """

    vocab: mtf.Dimension
    d_model: mtf.Dimension
    _: KW_ONLY
    initializer_stddev: float
    tie_embeddings: bool = True
    scale_embeddings: bool = False
    logits_bias: bool = False
    scale_decoder_outputs: bool = False
    embedding_multiplier: float = 1.0
    logits_divisor: float = 1.0
    logits_soft_cap: float = 0.0

    def __call__(self, tokens: mtf.Tensor, dtype: tf.DType) -> mtf.Tensor:
        """Looks up integers [...] -> [..., d_model] in the current scope's variable `embedding`."""
        table = self._table(tokens.mesh, "embedding", dtype)
        x = mtf.gather(table, tokens, self.vocab, is_checked=True)
        factor = self.embedding_multiplier
        if self.scale_embeddings:
            # With `transfer_from`, the factor uses the small model's d_model; see
            # `t2tp.building.transfer`.
            factor *= (self.d_model.size / context_of(x.mesh).ratio("d_model")) ** 0.5
        return x if factor == 1.0 else x * factor

    def logits(self, x: mtf.Tensor) -> mtf.Tensor:
        """Computes [..., d_model] -> [..., vocab]."""
        return self.projection(x).logits

    def projection(self, x: mtf.Tensor) -> Projection:
        """Returns the `Projection` of x [..., d_model]."""
        name = "embedding" if self.tie_embeddings else "output_embedding"
        # Scales by 1 / width (arXiv:2203.03466, table 8).
        wider = context_of(x.mesh).ratio("d_model")
        factor = 1 / (wider * self.logits_divisor)
        if self.scale_decoder_outputs:
            factor *= (self.d_model.size / wider) ** -0.5
        if factor != 1.0:
            x *= factor
        table = self._table(x.mesh, name, x.dtype)
        bias = None
        if self.logits_bias:
            bias = variables.bias(x.mesh, "logits_bias", [self.vocab], x.dtype)
        return Projection(x, table, bias, self.logits_soft_cap)

    def _table(self, mesh: mtf.Mesh, name: str, dtype: tf.DType) -> mtf.Tensor:
        stddev = self.initializer_stddev
        return variables.embedding(mesh, name, [self.vocab], self.d_model, stddev, dtype)
