"""The base class of models."""

import abc
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers.adapters import Adapters
from t2tp.layers.initial_values import InitialValues
from t2tp.ops.variables.transfer import Transfer
from t2tp.optim.loss import LossOutput
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Feature, Mesh

# Feature, int64 [batch]: the index of each row's example in its split. The trainer feeds it to
# every model in evaluations. Random numbers in evaluations should depend only on this index.
EXAMPLE_INDEX = "example_index"


class FeatureMismatchError(ValueError):
    """A problem's features do not fit a model."""


# Features that change the training targets. A model that ignores them would train on wrong targets.
_CHANGING = frozenset({"targets_weights"})

# Methods of models that build layers. Their first argument is the mesh.
_BUILDING = ("loss", "logits", "class_logits", "prefill", "decode_step")


class Model(abc.ABC):
    """Base class of models; the hparams set the architecture.

    With the hparam `lora_rank`, the layers that `loss`, `logits`, `class_logits`, `prefill` and
    `decode_step` build have adapters. Variables that are neither adapters nor matched by the hparam
    `lora_also_trained` are then frozen.

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

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Wraps the methods that build layers, so that layers use the hparams' settings."""
        super().__init_subclass__(**kwargs)
        for name in set(_BUILDING) & set(vars(cls)):
            setattr(cls, name, _as_in_hparams(vars(cls)[name]))

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
          FeatureMismatchError: a required feature is missing, or the model does not use a feature
            that changes the targets.
        """
        names = set(names)
        unknown = sorted((names & _CHANGING) - {*self.takes, *self.may_take})
        if unknown:
            raise FeatureMismatchError(
                f"the problem gives {unknown[0]}, and the model {type(self).__name__} does not"
                " use it, so it would learn the tokens that are only to be read: use a language"
                " model such as transformer_lm"
            )
        missing = [name for name in self.takes if name not in names]
        if missing:
            raise FeatureMismatchError(
                f"the model {type(self).__name__} takes {', '.join(self.takes)}, and the problem"
                f" gives {', '.join(sorted(names))}: {', '.join(missing)} is missing"
            )

    @abc.abstractmethod
    def loss(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool) -> LossOutput:
        """Builds the loss of a batch.

        `features` are the problem's features by name. In training, dropout is on.
        """


def classes_of(hparams: HParams, size: int) -> mtf.Dimension:
    """Returns the dimension of the classes.

    The hparam `num_classes`, if declared and not 0, must equal `size`, the problem's number of
    classes.

    Raises:
      ValueError: `num_classes` and `size` differ.
    """
    of_model = hparams.num_classes if "num_classes" in hparams else 0
    if of_model and size != of_model:
        raise ValueError(
            f"the problem has {size} classes and the model's num_classes is {of_model}: use a"
            f" problem with {of_model} classes, or num_classes=0 to train a new classifier"
        )
    return mtf.Dimension("classes", size)


@contextlib.contextmanager
def layer_settings(mesh: Mesh, **settings: object) -> Iterator[None]:
    """Sets attributes of a mesh inside the context, for the layers that are built there.

    The attributes are `adapters` (`Adapters`), `initial_values` (`InitialValues`) or `transfer`
    (`Transfer`).
    """
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.callback(setattr, mesh, name, getattr(mesh, name, None))
            setattr(mesh, name, value)
        yield


def _as_in_hparams(method: Callable) -> Callable:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def build(self: Model, mesh: Mesh, *args: object, **kwargs: object) -> object:
        arguments = signature.bind(self, mesh, *args, **kwargs).arguments
        transfer = Transfer.from_hparams(self.hparams)
        if transfer is not None and getattr(mesh, "transfer", None) is None:
            if method.__name__ == "loss":
                transfer.set_small_variables(_small_variables(self, transfer.small, arguments))
            with layer_settings(mesh, transfer=transfer):
                return build(self, mesh, *args, **kwargs)
        settings: dict[str, object] = {}
        values = InitialValues.from_hparams(self.hparams)
        if values is not None:
            settings["initial_values"] = values
        adapters = Adapters.from_hparams(self.hparams)
        if adapters is not None:
            is_training = arguments.get("training")
            settings["adapters"] = adapters if is_training else replace(adapters, dropout=0.0)
        with layer_settings(mesh, **settings):
            built = method(self, mesh, *args, **kwargs)
        if adapters is not None and method.__name__ == "loss":
            adapters.check_also_trained(mesh.graph)
        return built

    return build


def _small_variables(
    model: Model, small: HParams, arguments: Mapping[str, Any]
) -> list[mtf.Variable]:
    """Returns the variables of a model with the hparams `small`.

    `arguments` are the arguments of `Model.loss`.
    """
    features = {name: Feature(x.shape, x.dtype) for name, x in arguments["features"].items()}

    def step_fn(mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        built = type(model)(small, model.vocab_sizes).loss(mesh, features, arguments["training"])
        return {"loss": built.loss}

    return AbstractProgram(step_fn, features).graph()[0].all_variables


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
