"""What a trainable model is to the trainer."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers.embedding import vocab_dimension
from t2tp.mesh.layout import Layout
from t2tp.mesh.program import Mesh
from t2tp.nearest import nearest

# The feature that says which example of its split a row is, int64 [batch]. The trainer feeds it in
# evaluations, to every model: what a model draws there should depend on it alone.
EXAMPLE_INDEX = "example_index"

_ACTIVATION_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LossOutput:
    """What a model makes of a batch.

    Attributes:
      loss: what training minimizes, a float32 scalar.
      metrics: float32 scalars by name, each a sum over the batch, so that a problem can add up
        batches and derive its figures.
      weight: the sum of the weights of which the loss is an average (the number of tokens, say), a
        float32 scalar: parts of a batch count by it when gradients are accumulated. None: the
        model cannot be trained with `microbatches` above 1.
    """

    loss: mtf.Tensor
    metrics: Mapping[str, mtf.Tensor]
    weight: mtf.Tensor | None = None


class FeatureMismatchError(ValueError):
    """A problem does not give the features that a model takes."""


class Model(abc.ABC):
    """A family of models; the hparams choose the member.

    Attributes:
      takes: names of the features that it needs.
      hparams: its `HParams`.
      vocab_sizes: how many ids a feature of the problem has, by its name; `targets` is always
        there: tokens, classes or pixel values to predict.
    """

    takes: tuple[str, ...] = ()

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Keeps what the model is made from; variables are made when the graph is built."""
        self.hparams = hparams
        self.vocab_sizes = vocab_sizes

    @property
    def activation_dtype(self) -> tf.DType:
        """What activations and products are computed in.

        Raises:
          ValueError: the hparam `activation_dtype` is none of float32, bfloat16 and float16.
        """
        name = self.hparams.activation_dtype
        if name not in _ACTIVATION_DTYPES:
            known = nearest(name, _ACTIVATION_DTYPES, "dtypes")
            raise ValueError(f"activation_dtype is {name!r}: {known}")
        return tf.as_dtype(name)

    def check_features(self, names: Iterable[str]) -> None:
        """Refuses features that are not what the model takes.

        Raises:
          FeatureMismatchError: names what is missing.
        """
        missing = [name for name in self.takes if name not in set(names)]
        if missing:
            raise FeatureMismatchError(
                f"the model {type(self).__name__} takes {', '.join(self.takes)}, and the problem"
                f" gives {', '.join(sorted(names))}: {', '.join(missing)} is missing"
            )

    @abc.abstractmethod
    def loss(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool) -> LossOutput:
        """Builds the loss of a batch.

        Args:
          mesh: the program's mesh.
          features: the problem's features by name.
          training: whether dropout is on.
        """


def vocab_of(hparams: HParams, size: int) -> mtf.Dimension:
    """The dimension of a vocabulary of `size`, rounded up for meshes: to a multiple of
    `vocab_divisor`, and of the mesh axis that splits it."""
    axis = Layout(hparams.mesh_shape, hparams.layout).axis_of("vocab")
    return vocab_dimension(size, hparams.vocab_divisor, axis.size if axis else 1)
