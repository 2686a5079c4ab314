"""The base class of image classifiers."""

import abc
from collections.abc import Mapping

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.layers.linear import dense
from t2tp.models.losses import predicted
from t2tp.models.model import LossOutput, Model


class ImageClassifier(Model):
    """Classifies images: `inputs`, float32 [batch, height, width, channels] in [0, 1]."""

    takes = ("inputs", "targets", "weights")

    @abc.abstractmethod
    def logits(self, mesh: Mesh, inputs: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Computes logits [batch, classes] from images [batch, height, width, channels].

        `inputs` has the activation dtype. In training dropout is on, and batch norms use batch
        statistics.
        """

    def build_loss(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> LossOutput:
        """Computes the mean negative log-likelihood of the classes, in nats.

        The hparam `label_smoothing` is included. Features: `inputs`; `targets`, integers [batch],
        the classes; `weights`, float32 [batch]: 0 for padding rows.
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
        with self.building(mesh):
            return self._float_logits(mesh, features, training=False)

    def _float_logits(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> mtf.Tensor:
        inputs = mtf.cast(features["inputs"], self.activation_dtype)
        return mtf.cast(self.logits(mesh, inputs, training), tf.float32)

    def classify(self, x: mtf.Tensor) -> mtf.Tensor:
        """Projects pooled features [batch, d] to logits [batch, classes].

        The variables are `output` and `output_bias` in the scope `logits`.
        """
        with tf1.variable_scope("logits"):
            return dense(x, self.classes, "output", "output_bias", is_head=True)
