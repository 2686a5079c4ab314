"""The encoder-decoder transformer.

A. Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762).
"""

from collections.abc import Mapping

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.hparam import HParams
from t2tp.layers.embedding import Projection
from t2tp.layers.mixture_of_experts import Totals
from t2tp.layers.passes import (
    DecodeStep,
    EncodedMemory,
    ForwardPass,
    FullForward,
    Prefill,
    SequenceInfo,
)
from t2tp.metrics import sequence_sums
from t2tp.models.autoregressive import AutoregressiveModel, DecodeState, previous_tokens
from t2tp.models.layer_factory import LayerFactory, shifted_right, token_positions
from t2tp.models.losses import predicted_tokens, weights_of, with_experts, with_metrics
from t2tp.models.model import LossOutput, vocab_of


@registry.register_model
class Transformer(AutoregressiveModel):
    """Encoder-decoder transformer.

    If inputs and targets have vocabularies of the same size, `tie_embeddings` or `shared_embedding`
    gives them one embedding table. With `tie_embeddings`, the logits use this table too (T5 v1.0).
    With `shared_embedding` alone, the logits have a table of their own (T5 v1.1). In all other
    cases inputs and targets have separate tables.
    """

    takes = (
        "inputs",
        "inputs_segmentation",
        "inputs_position",
        "targets",
        "targets_segmentation",
        "targets_position",
    )
    has_experts = False

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Creates the layers; see `Model`.

        Raises:
          FeatureMismatchError: the problem has no `inputs`.
        """
        super().__init__(hparams, vocab_sizes)
        if "inputs" not in vocab_sizes:
            self.check_features(vocab_sizes)
        self._factory = LayerFactory(hparams, self.has_experts)
        self._embedding = self._factory.embedding(vocab_of(hparams, vocab_sizes["targets"]))
        same_size = vocab_sizes["inputs"] == vocab_sizes["targets"]
        shares = hparams.shared_embedding
        self._is_shared = (hparams.tie_embeddings or shares) and same_size
        self._inputs_embedding = self._embedding
        if not self._is_shared:
            self._inputs_embedding = self._factory.embedding(
                vocab_of(hparams, vocab_sizes["inputs"])
            )
        layers = hparams.num_hidden_layers
        self._encoder = self._factory.stack(hparams.num_encoder_layers or layers, causal=False)
        self._decoder = self._factory.stack(
            hparams.num_decoder_layers or layers, causal=True, cross=True
        )

    def build_loss(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> LossOutput:
        """Computes the mean negative log-likelihood of the targets without padding, in nats.

        Features: `inputs` and `targets`, each with its `_segmentation` and `_position`: integers
          [batch, length]. Segment 0 is padding. Every other segment of the targets attends to the
          segment of the inputs with the same number.
        """
        projection, totals = self._projection(features, training)
        targets, segments = features["targets"], features["targets_segmentation"]
        weights = weights_of(segments)
        out = predicted_tokens(self.hparams, projection, targets, weights, training)
        if not training:
            rows = targets.shape.dims[0]
            sums = sequence_sums(projection.logits, targets, weights, projection.vocab, rows)
            out = with_metrics(out, sums)
        stacks = {"encoder_": features["inputs_segmentation"], "": segments}
        return with_experts(out, self.hparams, totals, stacks)

    def logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """Computes the logits of each target from the inputs and the previous targets.

        There is no dropout. The features are as in `loss`. The result is [batch, length, vocab].
        """
        with self.building(mesh):
            return self._projection(features, training=False)[0].logits

    def _projection(
        self, features: Mapping[str, mtf.Tensor], training: bool
    ) -> tuple[Projection, Totals]:
        targets, segments = features["targets"], features["targets_segmentation"]
        sequence = SequenceInfo(features["targets_position"], segments)
        memory, encoder_totals = self._encode(features, training)
        before = shifted_right(targets, segments, self.hparams.bos_token_id)
        forward = FullForward(sequence, training, memory)
        x, totals = self._decode(before, forward, encoder_totals)
        return self._project(x), totals

    def build_prefill(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension
    ) -> DecodeState:
        """See `AutoregressiveModel`.

        Also requires the features `inputs` and `inputs_segmentation` (1: token, 0: padding).
        """
        memory, _ = self._encode(features, training=False)
        state: DecodeState = {"inputs_segmentation": memory.segments}
        prefix = features.get("prefix")
        if prefix is None:
            rows = mtf.Shape([features["inputs"].shape.dims[0], mtf.Dimension("prefix_length", 1)])
            prefix = mtf.zeros(mesh, rows, tf.int32)
        before = shifted_right(prefix, None, self.hparams.bos_token_id)
        sequence = SequenceInfo(token_positions(prefix))
        self._decode(before, Prefill(sequence, length, state, memory))
        return state

    def build_decode_step(
        self, mesh: Mesh, tokens: mtf.Tensor, positions: mtf.Tensor, state: DecodeState
    ) -> tuple[mtf.Tensor, DecodeState]:
        """See `AutoregressiveModel`."""
        before = previous_tokens(tokens, positions, self.hparams.bos_token_id)
        state = dict(state)
        x, _ = self._decode(before, DecodeStep(positions, state, state["inputs_segmentation"]))
        return mtf.cast(self._project(x).logits, tf.float32), state

    def _encode(
        self, features: Mapping[str, mtf.Tensor], training: bool
    ) -> tuple[EncodedMemory, Totals]:
        """Returns the encoder's output along `memory_length`, and the experts' statistics."""
        inputs, segments = features["inputs"], features["inputs_segmentation"]
        positions = features.get("inputs_position")
        sequence = SequenceInfo(
            token_positions(inputs) if positions is None else positions, segments
        )
        with tf1.variable_scope("" if self._is_shared else "encoder"):
            x = self._inputs_embedding(inputs, self.activation_dtype)
        with tf1.variable_scope("encoder"):
            forward = FullForward(sequence, training)
            x, totals = self._encoder(*self._factory.stack_input(x, forward))
        x, segments = (
            mtf.rename_dimension(tensor, sequence.length.name, "memory_length")
            for tensor in (x, segments)
        )
        return EncodedMemory(x, segments), totals

    def _decode(
        self, tokens: mtf.Tensor, forward: ForwardPass, encoder_totals: Totals = ()
    ) -> tuple[mtf.Tensor, Totals]:
        """Applies the embedding and the decoder's layers to [batch...]."""
        with tf1.variable_scope("" if self._is_shared else "decoder"):
            x = self._embedding(tokens, self.activation_dtype)
        with tf1.variable_scope("decoder"):
            return self._decoder(*self._factory.stack_input(x, forward), encoder_totals)

    def _project(self, x: mtf.Tensor) -> Projection:
        with tf1.variable_scope("" if self._is_shared else "decoder"):
            return self._embedding.projection(x)


@registry.register_model
class TransformerMoeEncdec(Transformer):
    """`transformer` with experts in every `moe_every`-th layer of encoder and decoder."""

    has_experts = True
