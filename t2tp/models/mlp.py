"""A multi-layer perceptron on images: the smallest model for experiments."""

import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.layers.dropout import Dropout
from t2tp.layers.linear import dense
from t2tp.models.image_classifier import ImageClassifier


@registry.register_model
class Mlp(ImageClassifier):
    """Applies `relu(x w + b)` `num_hidden_layers` times to flattened pixels, then computes logits.

    The outputs of layers are alternately `d_ff` and `d_model`, both of size `hidden_size`. With the
    layout `d_ff:model`, each pair of layers is split as in Megatron and needs one all-reduce in the
    forward pass. The first layer may also be split along the pixels.
    """

    def logits(self, mesh: Mesh, inputs: mtf.Tensor, training: bool) -> mtf.Tensor:
        """See `ImageClassifier`."""
        dropout = Dropout(self.hparams.dropout)
        x = inputs
        for layer in range(self.hparams.num_hidden_layers):
            out = mtf.Dimension("d_model" if layer % 2 else "d_ff", self.hparams.hidden_size)
            with tf1.variable_scope(f"layer_{layer:02d}"):
                x = dense(x, out, "input", "input_bias", inputs=x.shape.dims[1:], gain=2.0**0.5)
            x = dropout(mtf.relu(x), training)
        return self.classify(x)
