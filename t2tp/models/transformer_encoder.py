"""Encoder-only transformer: text classification and masked language modeling."""

from collections.abc import Mapping
from functools import partial

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.hparam import HParams
from t2tp.layers import variables
from t2tp.layers.dropout import Dropout
from t2tp.layers.embedding import Projection
from t2tp.layers.feed_forward import activation_of
from t2tp.layers.linear import dense, square_dense
from t2tp.layers.mixture_of_experts import Totals
from t2tp.layers.passes import FullForward, SequenceInfo
from t2tp.metrics import positive_sums
from t2tp.models import model
from t2tp.models.layer_factory import LayerFactory
from t2tp.models.losses import (
    loss_options,
    predicted,
    predicted_tokens,
    weights_of,
    with_experts,
    with_metrics,
)
from t2tp.ops.random_by_row import random_by_row

_OF_CLASSES = ("inputs", "inputs_segmentation", "inputs_position", "targets", "weights")
_OF_MASKED = ("targets", "targets_segmentation", "targets_position")

# BERT (arXiv:1810.04805), section 3.1: `_MASKED` is the fraction of tokens to predict. A fraction
# `_AS_MASK` of the tokens to predict becomes the mask token, and `_AS_ANY` a random token.
_MASKED, _AS_MASK, _AS_ANY = 0.15, 0.8, 0.1


@registry.register_model
class TransformerEncoder(model.Model):
    """Bidirectional transformer: a text classifier or a masked language model.

    If the problem has `inputs`, the model classifies rows. Otherwise it is a masked language model
    (J. Devlin et al., "BERT", arXiv:1810.04805).
    """

    has_experts = False

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Creates the layers; see `Model`.

        Raises:
          ValueError: the vocabulary has no id left for the mask.
        """
        super().__init__(hparams, vocab_sizes)
        self._classifies = "inputs" in vocab_sizes
        self.takes = _OF_CLASSES if self._classifies else _OF_MASKED
        self._factory = LayerFactory(hparams, self.has_experts)
        self._num_tokens = vocab_sizes["inputs" if self._classifies else "targets"]
        # Without a `mask_token_id`, the mask is the id after the vocabulary. A classifier's
        # embedding has a row for the mask too, so that the classifier can start from a masked
        # language model.
        self._mask_id = hparams.mask_token_id or self._num_tokens
        needs_row = not hparams.mask_token_id and not (self._classifies and hparams.vocab_size)
        if needs_row and self._num_tokens == hparams.vocab_size:
            raise ValueError(
                f"the problem has all {hparams.vocab_size} tokens of the model, so that no row is"
                " left for a mask: set mask_token_id to the token that masks others"
            )
        self._vocab = model.vocab_of(hparams, self._num_tokens + needs_row)
        self._embedding = self._factory.embedding(self._vocab, hparams.logits_bias)
        self._stack = self._factory.stack(hparams.num_hidden_layers, causal=False)

    def build_loss(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> model.LossOutput:
        """Computes the mean negative log-likelihood of the classes or the masked tokens, in nats.

        A classifier requires these features:

        - `inputs`, `inputs_segmentation` (0: padding), `inputs_position`: integers [batch, length].
        - `targets`: integers [batch], the classes.
        - `weights`: float32 [batch], 0 for padding rows.

        A masked language model requires these features:

        - `targets`, `targets_segmentation` (0: padding), `targets_position`: integers [batch,
          length].
        - `example_index`, in evaluation: integers [batch], each row's index in the split, which
          seeds its mask.

        With the hparam `token_types`, the feature `inputs_types` or `targets_types` is optional:
        integers [batch, length] below `token_types`. By default all types are 0.

        Raises:
          FeatureMismatchError: a masked language model is evaluated without `example_index`.
        """
        if self._classifies:
            return self._loss_of_classes(features, training)
        return self._loss_of_masked(features, training)

    def class_logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """See `Classifier`.

        Raises:
          ValueError: the model is a masked language model.
        """
        if not self._classifies:
            raise ValueError(
                "this transformer_encoder is a masked language model: it has classes only on a"
                " problem with `inputs`, and classes as `targets`."
            )
        with self.building(mesh):
            return self._class_logits(features, training=False)[0]

    def _class_logits(
        self, features: Mapping[str, mtf.Tensor], training: bool
    ) -> tuple[mtf.Tensor, Totals]:
        segments = features["inputs_segmentation"]
        sequence = SequenceInfo(features["inputs_position"], segments)
        types = features.get("inputs_types")
        x, totals = self._hidden(features["inputs"], types, sequence, training)
        has_pooler = self.hparams.pooler
        row = self._pooled(x, training) if has_pooler else _mean(x, weights_of(segments))
        with tf1.variable_scope("classifier"):
            return dense(row, self.classes, is_head=True), totals

    def _loss_of_classes(
        self, features: Mapping[str, mtf.Tensor], training: bool
    ) -> model.LossOutput:
        logits, totals = self._class_logits(features, training)
        targets, classes = features["targets"], logits.shape.dims[-1]
        weights = mtf.cast(features["weights"], tf.float32)
        options = loss_options(self.hparams)
        out = predicted(logits, targets, weights, classes, training, **options)
        if not training and classes.size == 2:
            out = with_metrics(out, positive_sums(logits, targets, weights, classes))
        return with_experts(out, self.hparams, totals, {"": features["inputs_segmentation"]})

    def _loss_of_masked(
        self, features: Mapping[str, mtf.Tensor], training: bool
    ) -> model.LossOutput:
        targets, segments = features["targets"], features["targets_segmentation"]
        examples = None if training else features.get(model.EXAMPLE_INDEX)
        if not training and examples is None:
            raise model.FeatureMismatchError(
                f"a masked language model is evaluated with a feature {model.EXAMPLE_INDEX},"
                " integers [batch], which selects the masked tokens of each row, and there is none:"
                " feed the index of each row in the data that are evaluated on."
            )
        tokens, is_masked = self._masked(targets, segments, examples)
        projection, totals = self._project(tokens, features, training)
        out = predicted_tokens(self.hparams, projection, targets, is_masked, training)
        if not training:
            visible = mtf.reduce_sum(weights_of(segments) - is_masked)
            out = with_metrics(out, {"unmasked_tokens": visible})
        return with_experts(out, self.hparams, totals, {"": segments})

    def token_logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """Computes a masked language model's logits of all tokens, without dropout.

        The features are as in `loss`. `targets` is the model's input; no tokens are masked.

        Returns:
          [batch, length, vocab].
        """
        return self._project(features["targets"], features, training=False)[0].logits

    def _project(
        self, tokens: mtf.Tensor, features: Mapping[str, mtf.Tensor], training: bool
    ) -> tuple[Projection, Totals]:
        sequence = SequenceInfo(features["targets_position"], features["targets_segmentation"])
        types = features.get("targets_types")
        x, totals = self._hidden(tokens, types, sequence, training)
        return self._embedding.projection(self._before_logits(x)), totals

    def _masked(
        self, targets: mtf.Tensor, segments: mtf.Tensor, examples: mtf.Tensor | None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Masks tokens; also returns float32 [batch, length]: 1 for tokens to predict, otherwise 0.

        In training the mask depends on the seed, the step and the row's index in the batch. In
        evaluation it depends only on the position in the row and on `examples`, each row's index in
        the split.
        """
        mask_uniform, kind_uniform, random_tokens = self._masking_randoms(targets, examples)
        random_tokens = mtf.cast(random_tokens, targets.dtype)
        is_masked = mtf.logical_and(mtf.less(mask_uniform, _MASKED), mtf.not_equal(segments, 0))
        mask = mtf.zeros_like(targets) + self._mask_id
        inputs = mtf.where(mtf.less(kind_uniform, _AS_MASK + _AS_ANY), random_tokens, targets)
        inputs = mtf.where(mtf.less(kind_uniform, _AS_MASK), mask, inputs)
        return mtf.where(is_masked, inputs, targets), mtf.cast(is_masked, tf.float32)

    def _masking_randoms(
        self, targets: mtf.Tensor, examples: mtf.Tensor | None
    ) -> tuple[mtf.Tensor, mtf.Tensor, mtf.Tensor]:
        """Returns two uniform random numbers in [0, 1) and a random token for each target."""
        mesh, shape, size = targets.mesh, targets.shape, self._num_tokens
        if examples is not None:
            by_row = partial(random_by_row, examples, shape.dims[-1])
            return by_row("masked"), by_row("how masked"), by_row("masked by", maxval=size)
        with tf1.variable_scope("masking"):
            uniform = partial(mtf.random_uniform, mesh, shape)
            mask_uniform, kind_uniform = (uniform(dtype=tf.float32) for _ in range(2))
            return mask_uniform, kind_uniform, uniform(maxval=size, dtype=tf.int32)

    def _hidden(
        self, tokens: mtf.Tensor, types: mtf.Tensor | None, sequence: SequenceInfo, training: bool
    ) -> tuple[mtf.Tensor, Totals]:
        """Returns the stack's output [batch, length, d_model], and the experts' statistics."""
        x = self._embedding(tokens, self.activation_dtype)
        if self.hparams.token_types:
            x += self._embedded_types(mtf.zeros_like(tokens) if types is None else types)
        return self._stack(*self._factory.stack_input(x, FullForward(sequence, training)))

    def _embedded_types(self, types: mtf.Tensor) -> mtf.Tensor:
        """Embeds token types, integers [batch, length] -> [batch, length, d_model]."""
        hparams = self.hparams
        dim = mtf.Dimension("token_types", hparams.token_types)
        rest = self._factory.d_model, hparams.initializer_stddev, self.activation_dtype
        table = variables.embedding(types.mesh, "type_embedding", [dim], *rest)
        return mtf.gather(table, types, dim, is_checked=True)

    def _before_logits(self, x: mtf.Tensor) -> mtf.Tensor:
        """Applies BERT's transform before the logits; see the hparam `mlm_head`."""
        if not self.hparams.mlm_head:
            return x
        with tf1.variable_scope("mlm_head"):
            return self._factory.norm(activation_of(self.hparams.mlp)(square_dense(x)))

    def _pooled(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Applies BERT's tanh layer to the first token of each row: [batch, d_model]."""
        first = mtf.gather(x, 0, x.shape.dims[1], is_checked=True)
        with tf1.variable_scope("pooler"):
            pooled = mtf.tanh(square_dense(first))
            return Dropout(self.hparams.layer_prepostprocess_dropout)(pooled, training)


def _mean(x: mtf.Tensor, token_mask: mtf.Tensor) -> mtf.Tensor:
    """Computes the mean over tokens: [batch, length, d_model] -> [batch, d_model]."""
    batch, length, d_model = x.shape.dims
    count = mtf.maximum(mtf.reduce_sum(token_mask, reduced_dim=length), 1.0)
    share = mtf.cast(token_mask / count, x.dtype)
    return mtf.einsum([x, share], output_shape=mtf.Shape([batch, d_model]))


@registry.register_model
class TransformerMoeEncoder(TransformerEncoder):
    """`transformer_encoder` with experts in every `moe_every`-th layer."""

    has_experts = True
