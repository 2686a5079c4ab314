"""A custom model: a neural n-gram language model.

The module also has hparams sets, a ranged set, a metric, and a small problem to try the model on.

Y. Bengio et al., "A Neural Probabilistic Language Model" (JMLR 3, 2003): a token is predicted from
the embeddings of the `context_size` tokens before it, through one hidden layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.hparam import HParams
from t2tp.hparams.base import base_hparams
from t2tp.layers import variables
from t2tp.layers.dropout import Dropout
from t2tp.layers.embedding import Embedding
from t2tp.models.autoregressive import AutoregressiveModel, DecodeState, previous_tokens
from t2tp.models.losses import predicted, with_metrics
from t2tp.models.model import LossOutput, vocab_of
from t2tp.ops.scatter_update import scatter_update
from t2tp.problems.data.sample import Samples
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.metrics import METRICS, Metric
from t2tp.ranged_hparams import RangedHParams


@registry.register_model
class NgramLm(AutoregressiveModel):
    """Predicts a token from a few tokens before it."""

    takes = ("targets", "targets_segmentation")

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Creates the dimensions; variables are created when the graph is built."""
        super().__init__(hparams, vocab_sizes)
        self._vocab = vocab_of(hparams, vocab_sizes["targets"])
        self._d_model = mtf.Dimension("d_model", hparams.d_model)
        self._d_ff = mtf.Dimension("d_ff", hparams.d_ff)
        stddev = hparams.d_model**-0.5
        self._embedding = Embedding(self._vocab, self._d_model, initializer_stddev=stddev)
        self._dropout = Dropout(hparams.dropout)

    def build_loss(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> LossOutput:
        """Computes the mean negative log-likelihood of the tokens, in nats."""
        targets, segments = features["targets"], features["targets_segmentation"]
        length = targets.shape.dims[-1]
        context = []
        for distance in range(1, self.hparams.context_size + 1):
            before = mtf.shift(targets, distance, length, wrap=False)
            # Several texts may share a row: tokens of other texts are not context.
            is_same = mtf.equal(segments, mtf.shift(segments, distance, length, wrap=False))
            context.append(before * mtf.cast(is_same, before.dtype))
        logits = self._logits(context, training)
        weights = mtf.cast(mtf.not_equal(segments, 0), tf.float32)
        out = predicted(logits, targets, weights, self._vocab, training)
        # For the metric `surprises` (below), returns a sum, because evaluation adds up batches.
        log_probs = mtf.log_softmax(logits, self._vocab)
        nats = -mtf.reduce_sum(
            log_probs * mtf.one_hot(targets, self._vocab), reduced_dim=self._vocab
        )
        is_surprise = mtf.cast(mtf.greater(nats, 10.0), tf.float32)
        mtf.scalar_summary("hardest_token", mtf.reduce_max(nats * weights))
        return with_metrics(out, {"surprise_count": mtf.reduce_sum(is_surprise * weights)})

    def build_prefill(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension
    ) -> DecodeState:
        """Returns the state: the token before each position."""
        prefix = self.prefix_of(features)
        dim = prefix.shape.dims[-1]
        before = mtf.shift(prefix, 1, dim, wrap=False)
        padded = mtf.pad(before, [0, length.size - dim.size], dim.name)
        return {"before": mtf.rename_dimension(padded, dim.name, length.name)}

    def build_decode_step(
        self, mesh: Mesh, tokens: mtf.Tensor, positions: mtf.Tensor, state: DecodeState
    ) -> tuple[mtf.Tensor, DecodeState]:
        """Returns the logits of the token at each row's position."""
        length = state["before"].shape.dims[-1]
        before = scatter_update(
            state["before"], previous_tokens(tokens, positions), positions, length
        )
        # Positions before the first one are out of range: there `gather` gives 0.
        context = [
            mtf.gather(before, positions - back, length)
            for back in range(self.hparams.context_size)
        ]
        return mtf.cast(self._logits(context, training=False), tf.float32), {"before": before}

    def _logits(self, context: list[mtf.Tensor], training: bool) -> mtf.Tensor:
        """Returns logits [..., vocab]; `context` has the preceding tokens, nearest first."""
        hidden = []
        for distance, tokens in enumerate(context, 1):
            x = self._embedding(tokens, self.activation_dtype)
            matrix = variables.matrix(
                x.mesh, f"input_{distance}", [self._d_model], [self._d_ff], 0.02, x.dtype
            )
            hidden.append(mtf.einsum([x, matrix], output_shape=tokens.shape + self._d_ff))
        x = self._dropout(mtf.relu(mtf.add_n(hidden)), training)
        matrix = variables.matrix(x.mesh, "output", [self._d_ff], [self._d_model], 0.02, x.dtype)
        return self._embedding.logits(
            mtf.einsum([x, matrix], output_shape=context[0].shape + self._d_model)
        )


@registry.register_hparams
def ngram_lm_base() -> HParams:
    """4 tokens of context, a hidden layer of 512."""
    hparams = base_hparams()
    hparams.layout = "batch:data;vocab:model;d_ff:model"
    hparams.max_length = 128
    hparams.add("context_size", 4, "tokens that the next one is predicted from", min=1, max=16)
    hparams.add("d_model", 128, "size of a token's vector", min=1)
    hparams.add("d_ff", 512, "size of the hidden layer", min=1)
    hparams.add("dropout", 0.1, "of the hidden layer", min=0, below=1)
    return hparams


@registry.register_hparams
def ngram_lm_tiny() -> HParams:
    """2 tokens of context, a hidden layer of 32: for tests."""
    hparams = ngram_lm_base()
    hparams.batch_size = 8
    hparams.max_length = 32
    hparams.context_size = 2
    hparams.d_model = 16
    hparams.d_ff = 32
    hparams.learning_rate_constant = 0.01
    hparams.learning_rate_warmup_steps = 10
    return hparams


@registry.register_ranged_hparams
def ngram_lm_range(ranged: RangedHParams) -> None:
    """The search space of `t2tp_tune`."""
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_int("context_size", 1, 8)


# The fraction of tokens with a probability below exp(-10).
METRICS["surprises"] = Metric(
    ("surprise_count", "tokens"), lambda sums: sums["surprise_count"] / sums["tokens"]
)


@registry.register_problem
class CountingText(LanguageModelProblem):
    """Lines that count upwards: "17 18 19 20"."""

    vocabulary_kind = "byte"
    metric_names = ("loss", "perplexity", "surprises")

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the lines that begin with the numbers of a split."""
        last_digits = {"train": range(8), "validation": (8,), "test": (9,)}[split]
        numbers = [n for n in range(1000) if n % 10 in last_digits]
        return [{"text": " ".join(str(n + i) for i in range(4))} for n in numbers]
