"""A decoder-only transformer language model.

By default the model has pre-norm blocks with RMS norms, learned positions and tied embeddings. The
layout `batch:data;heads:model;d_ff:model;vocab:model` is Megatron's tensor parallelism (M. Shoeybi
et al., arXiv:1909.08053, section 3). Each layer then has two all-reduces over the model axis in the
forward pass, and two in the backward pass.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.building.adapters import FROZEN
from t2tp.building.mesh import Mesh
from t2tp.hparam import HParams
from t2tp.layers.passes import DecodeStep, ForwardPass, FullForward, Prefill, SequenceInfo
from t2tp.layers.stack import StackPass, apply_stacks
from t2tp.metrics import sequence_sums
from t2tp.models.autoregressive import (
    FIRST_TOKEN,
    AutoregressiveModel,
    DecodeState,
    previous_tokens,
)
from t2tp.models.layer_factory import LayerFactory, shifted_right, token_positions
from t2tp.models.losses import (
    TARGETS_WEIGHTS,
    predicted_tokens,
    weights_of_targets,
    with_experts,
    with_metrics,
)
from t2tp.models.model import LossOutput, vocab_of
from t2tp.models.preferences import REFERENCES, preference_loss
from t2tp.ops.cross_entropy.projected import Teacher

# Scope of a teacher's variables.
TEACHER = "teacher"


@contextlib.contextmanager
def _as_teacher(mesh: Mesh) -> Iterator[None]:
    """Builds a teacher inside the `with`: its variables are frozen, below the scope `teacher`."""
    with mesh.building(adapters=FROZEN, transfer=None), tf1.variable_scope(TEACHER):
        yield


@registry.register_model
class TransformerLm(AutoregressiveModel):
    """Decoder-only transformer language model.

    Attributes:
      vocab: the dimension of the tokens, which may have more rows than there are tokens.
      teacher: a model whose predictions training imitates, with the vocabulary of this model; its
        variables are below the scope `teacher`, and frozen. None: no teacher.
    """

    takes: tuple[str, ...] = ("targets", "targets_segmentation", "targets_position")
    may_take = (TARGETS_WEIGHTS, FIRST_TOKEN)
    has_experts = False

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Creates the layers; see `Model`."""
        super().__init__(hparams, vocab_sizes)
        self._factory = LayerFactory(hparams, self.has_experts)
        self.vocab = vocab_of(hparams, vocab_sizes["targets"])
        self._embedding = self._factory.embedding(self.vocab)
        self._stack = self._factory.stack(hparams.num_hidden_layers, causal=True)
        self.teacher: TransformerLm | None = None
        if hparams.preference_loss:
            self.takes = (*self.takes, TARGETS_WEIGHTS, *REFERENCES)

    def build_loss(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> LossOutput:
        """Computes the mean negative log-likelihood of the tokens without padding, in nats.

        These features are required:

        - `targets`, `targets_segmentation` (0: padding), `targets_position`: integers [batch,
          length].

        These features are optional:

        - `targets_weights`: integers [batch, length], 0 for a token that is only read.
        - `first_token`: integers [batch], each row's own `bos_token_id`.
        - `reference_chosen`, `reference_rejected`: float32 [batch, pairs]; required by the hparam
          `preference_loss`, whose losses `t2tp.models.preferences` describes.
        - `targets_previous`: integers [batch], the token before a row that continues a text. If not
          0, the first target is predicted from it, not from `bos_token_id` or `first_token`.

        Raises:
          ValueError: positions are learned, and the length is above `max_length`.
        """
        passes = [self._begin(features, training)]
        if self.teacher is not None and training:
            with _as_teacher(mesh):
                begun = self.teacher._begin(features, False)
            passes.append(replace(begun, within=lambda: _as_teacher(mesh)))
        (x, totals), *taught = apply_stacks(passes)
        projection = self._embedding.projection(x)
        targets, weights = features["targets"], weights_of_targets(features)
        if self.hparams.preference_loss:
            out = preference_loss(self.hparams, projection.logits, features)
        else:
            teacher = self._taught(mesh, taught[0][0]) if taught else None
            out = predicted_tokens(self.hparams, projection, targets, weights, training, teacher)
        if not training and not self.hparams.preference_loss:
            rows = targets.shape.dims[0]
            sums = sequence_sums(projection.logits, targets, weights, self.vocab, rows)
            out = with_metrics(out, sums)
        return with_experts(out, self.hparams, totals, {"": features["targets_segmentation"]})

    def logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """Computes the logits of each target from the previous targets, without dropout.

        The features are as in `loss`. The result is [batch, length, vocab].
        """
        with self.building(mesh):
            ((x, _),) = apply_stacks([self._begin(features, False)])
            return self._embedding.logits(x)

    def _taught(self, mesh: Mesh, x: mtf.Tensor) -> Teacher:
        """Returns the teacher's logits as operands; `x` are the results of its layers."""
        assert self.teacher is not None
        with _as_teacher(mesh):
            taught = self.teacher._embedding.projection(x)
        return Teacher(
            taught.x,
            taught.table,
            taught.bias,
            taught.soft_cap,
            self.hparams.distillation_weight,
            self.hparams.distillation_temperature,
            self.vocab_sizes["targets"],
        )

    def _begin(self, features: Mapping[str, mtf.Tensor], training: bool) -> StackPass:
        """Returns the stack and its input, the embedded tokens."""
        segments = features["targets_segmentation"]
        sequence = SequenceInfo(features["targets_position"], segments)
        tokens = shifted_right(
            features["targets"],
            segments,
            features.get(FIRST_TOKEN, self.hparams.bos_token_id),
            features.get("targets_previous"),
        )
        return StackPass(self._stack, *self._embedded(tokens, FullForward(sequence, training)))

    def _embedded(self, tokens: mtf.Tensor, forward: ForwardPass) -> tuple[mtf.Tensor, ForwardPass]:
        return self._factory.stack_input(self._embedding(tokens, self.activation_dtype), forward)

    def build_prefill(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension
    ) -> DecodeState:
        """See `AutoregressiveModel`.

        Raises:
          ValueError: `prefix` is missing.
        """
        prefix = self.prefix_of(features)
        positions = token_positions(prefix)
        state: DecodeState = {n: x for n, x in features.items() if n == FIRST_TOKEN}
        first = state.get(FIRST_TOKEN, self.hparams.bos_token_id)
        forward = Prefill(SequenceInfo(positions), length, state)
        self._stack(*self._embedded(shifted_right(prefix, None, first), forward))
        return state

    def build_decode_step(
        self, mesh: Mesh, tokens: mtf.Tensor, positions: mtf.Tensor, state: DecodeState
    ) -> tuple[mtf.Tensor, DecodeState]:
        """See `AutoregressiveModel`."""
        first = state.get(FIRST_TOKEN, self.hparams.bos_token_id)
        before = previous_tokens(tokens, positions, first)
        state = dict(state)
        x, _ = self._stack(*self._embedded(before, DecodeStep(positions, state)))
        return mtf.cast(self._embedding.logits(x), tf.float32), state


@registry.register_model
class TransformerMoe(TransformerLm):
    """`transformer_lm` with experts in every `moe_every`-th layer."""

    has_experts = True
