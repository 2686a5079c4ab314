"""The base class of models."""

import abc
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.adapters import Adapters
from t2tp.building.initial_values import InitialValues
from t2tp.building.mesh import BuildContext, Mesh, declared
from t2tp.building.transfer import SmallVariable, Transfer
from t2tp.hparam import HParams
from t2tp.optim.loss import LossOutput
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Feature

# Feature, int64 [batch]: the index of each row's example in its split. The trainer feeds it to
# every model in evaluations. Random numbers in evaluations should depend only on this index.
EXAMPLE_INDEX = "example_index"


class FeatureMismatchError(ValueError):
    """A problem's features do not fit a model."""


# Features that change the training targets, with advice: a model that ignores them would train on
# wrong targets.
_CHANGING = {
    "targets_weights": "it would learn the tokens that are only to be read: use a language model"
    " such as transformer_lm",
    "reference_chosen": "it would learn the rejected replies too: set preference_loss=dpo with a"
    " language model such as transformer_lm",
}


class Model(abc.ABC):
    """Base class of models; the hparams set the architecture.

    A model defines `build_loss`; callers call `loss`, which builds in the context of the hparams
    (`building`). With the hparam `lora_rank`, the layers then have adapters, and variables that are
    neither adapters nor matched by the hparam `lora_also_trained` are frozen.

    Attributes:
      takes: names of the required features.
      may_take: names of optional features. `targets_weights` (which changes the targets) and
        `first_token` (which decoders set) must be listed here if the model uses them. Other
        optional features need not be listed.
      hparams: the model's `HParams`.
      vocab_sizes: feature -> number of ids. It always has `targets`: the tokens, classes or pixel
        values to predict.
    """

    takes: tuple[str, ...] = ()
    may_take: tuple[str, ...] = ()

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Stores the arguments; variables are created when the graph is built."""
        self.hparams = hparams
        self.vocab_sizes = vocab_sizes

    @property
    def activation_dtype(self) -> tf.DType:
        """The dtype of activations and matmuls."""
        return tf.as_dtype(self.hparams.activation_dtype)

    def check_features(self, names: Iterable[str]) -> None:
        """Checks that a problem's features fit the model.

        Raises:
          FeatureMismatchError: a required feature is missing, or the model does not use inputs, or
            a feature that changes the targets.
        """
        names = set(names)
        unknown = sorted((names & set(_CHANGING)) - {*self.takes, *self.may_take})
        if unknown:
            raise FeatureMismatchError(
                f"the problem gives {unknown[0]}, and the model {type(self).__name__} does not"
                f" use it, so {_CHANGING[unknown[0]]}"
            )
        if "inputs_segmentation" in names - {*self.takes, *self.may_take}:
            every = ((name, registry.model(name)) for name in registry.list_models())
            readers = [name for name, each in every if "inputs_segmentation" in each.takes]
            raise FeatureMismatchError(
                f"the problem gives inputs and targets, and the model {type(self).__name__} reads"
                f" no inputs: use a model that does, such as {', '.join(readers)}"
            )
        missing = [name for name in self.takes if name not in names]
        if missing:
            raise FeatureMismatchError(
                f"the model {type(self).__name__} takes {', '.join(self.takes)}, and the problem"
                f" gives {', '.join(sorted(names))}: {', '.join(missing)} is missing"
            )

    def loss(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool) -> LossOutput:
        """Builds the loss of a batch.

        `features` are the problem's features by name. In training, dropout is on.

        Raises:
          ValueError: `lora_also_trained` matches no variable, or `transfer_from` does not fit.
        """
        with self.building(mesh, training) as context:
            if context.transfer is not None:
                small = self._small_variables(context.transfer.small, features, training)
                context.transfer.set_small_variables(small)
            built = self.build_loss(mesh, features, training)
        if context.adapters is not None:
            context.adapters.check_also_trained(mesh.graph)
        return built

    @abc.abstractmethod
    def build_loss(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> LossOutput:
        """Builds the loss; a model defines this method, and `loss` calls it."""

    def building(
        self, mesh: Mesh, training: bool = False
    ) -> contextlib.AbstractContextManager[BuildContext]:
        """Returns the context in which layers have the settings of the model's hparams.

        Everything that builds layers needs it: without it a model would silently lack its adapters
        or its rule of initial values. `loss`, `prefill` and `decode_step` enter it for a model.
        """
        adapters = Adapters.from_hparams(self.hparams)
        if adapters is not None and not training:
            adapters = replace(adapters, dropout=0.0)
        return mesh.building(
            adapters=adapters,
            initial_values=InitialValues.from_hparams(self.hparams),
            transfer=Transfer.from_hparams(self.hparams),
        )

    @property
    def classes(self) -> mtf.Dimension:
        """The dimension of a classifier's classes.

        The hparam `num_classes`, if declared and not 0, must equal the problem's number of classes.

        Raises:
          ValueError: the two numbers differ.
        """
        size = self.vocab_sizes["targets"]
        of_model = self.hparams.num_classes if "num_classes" in self.hparams else 0
        if of_model and size != of_model:
            raise ValueError(
                f"the problem has {size} classes and the model's num_classes is {of_model}: use a"
                f" problem with {of_model} classes, or num_classes=0 to train a new classifier"
            )
        return mtf.Dimension("classes", size)

    def _small_variables(
        self, small: HParams, features: Mapping[str, mtf.Tensor], training: bool
    ) -> dict[str, SmallVariable]:
        """Returns the variables with a role of the model with the hparams `small`."""

        def step_fn(mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
            built = type(self)(small, self.vocab_sizes).loss(mesh, features, training)
            return {"loss": built.loss}

        inputs = {name: Feature(x.shape, x.dtype) for name, x in features.items()}
        return {
            variable.name: SmallVariable(role, variable.get_master().initializer)
            for variable in AbstractProgram(step_fn, inputs).graph()[0].all_variables
            if (role := declared(variable).role) is not None
        }


@runtime_checkable
class Classifier(Protocol):
    """A model that classifies features into the classes of `targets`."""

    def class_logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """Computes the logits of the classes, [batch, classes], without dropout.

        `features` are the problem's features, without `targets` and `weights`.
        """


def vocab_of(hparams: HParams, size: int) -> mtf.Dimension:
    """Returns the dimension of a vocabulary.

    The hparam `vocab_size`, if declared and not 0, replaces `size`, the problem's number of tokens.

    Raises:
      ValueError: the problem has more tokens than `vocab_size`.
    """
    of_model = hparams.vocab_size if "vocab_size" in hparams else 0
    if of_model and size > of_model:
        raise ValueError(
            f"the problem's vocabulary has {size} tokens and the model's vocab_size is {of_model}:"
            " prepare the data with the vocabulary of the model"
            " (--problem_options=vocabulary_from=...)"
        )
    return mtf.Dimension("vocab", of_model or size)
