"""What models that name what is on a picture have in common."""

from __future__ import annotations

import abc
from collections.abc import Mapping

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.layers import variables
from t2tp.mesh.program import Mesh
from t2tp.models.losses import predicted
from t2tp.models.model import LossOutput, Model


class ImageClassifier(Model):
    """A model from `inputs`, float32 [batch, height, width, channels] of 0 to 1, to a class."""

    takes = ("inputs", "targets", "weights")

    @abc.abstractmethod
    def logits(self, mesh: Mesh, inputs: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Builds the classes' logits.

        Args:
          mesh: the program's mesh.
          inputs: in the activations' dtype [batch, height, width, channels].
          training: whether dropout is on and batch norms go by the batch.

        Returns:
          [batch, classes].
        """

    def loss(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool) -> LossOutput:
        """Mean negative log-likelihood of the classes, in nats; smoothed in training, if the hparam
        `label_smoothing` says so.

        Features: `inputs`; `targets`, integers [batch], the classes; `weights`, float32 [batch]: 0
          for rows that are no pictures.
        """
        return predicted(
            self._float_logits(mesh, features, training),
            features["targets"],
            features["weights"],
            self.classes,
            training,
            label_smoothing=self.hparams.label_smoothing,
        )

    def class_logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """See `Classifier`."""
        return self._float_logits(mesh, features, training=False)

    def _float_logits(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> mtf.Tensor:
        inputs = mtf.cast(features["inputs"], self.activation_dtype)
        return mtf.cast(self.logits(mesh, inputs, training), tf.float32)

    @property
    def classes(self) -> mtf.Dimension:
        """The dimension of the classes."""
        return mtf.Dimension("classes", self.vocab_sizes["targets"])

    def classify(self, x: mtf.Tensor) -> mtf.Tensor:
        """What a picture has become, [batch, d] -> logits [batch, classes]; in the scope `logits`
        the variables `output` and `output_bias`."""
        batch, dim = x.shape.dims
        with tf1.variable_scope("logits"):
            stddev = dim.size**-0.5
            matrix = variables.weight(x.mesh, "output", [dim, self.classes], stddev, x.dtype)
            bias = variables.zeros(x.mesh, "output_bias", [self.classes], x.dtype)
        return mtf.einsum([x, matrix], output_shape=[batch, self.classes]) + bias
