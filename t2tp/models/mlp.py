"""A multi-layer perceptron on pictures: the smallest model there is to try things with."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.layers import variables
from t2tp.layers.dropout import Dropout
from t2tp.mesh.program import Mesh
from t2tp.models.image_classifier import ImageClassifier


@registry.register_model
class Mlp(ImageClassifier):
    """All pixels, then `num_hidden_layers` times `relu(x w + b)`, then the classes.

    Layers are `d_ff` and `d_model` in turn, both of `hidden_size`: with the layout `d_ff:model`
    each pair is split as Megatron splits it, for one sum over the mesh axis. The first layer may
    also be split in the pixels.
    """

    def logits(self, mesh: Mesh, inputs: mtf.Tensor, training: bool) -> mtf.Tensor:
        """See `ImageClassifier`."""
        dropout = Dropout(self.hparams.dropout)
        batch, *dims = inputs.shape.dims
        x = inputs
        for layer in range(self.hparams.num_hidden_layers):
            out = mtf.Dimension("d_model" if layer % 2 else "d_ff", self.hparams.hidden_size)
            with tf1.variable_scope(f"layer_{layer:02d}"):
                stddev = (2.0 / mtf.Shape(dims).size) ** 0.5
                matrix = variables.weight(mesh, "input", [*dims, out], stddev, x.dtype)
                bias = variables.zeros(mesh, "input_bias", [out], x.dtype)
            x = mtf.relu(mtf.einsum([x, matrix], output_shape=[batch, out]) + bias)
            x = dropout(x, training)
            dims = [out]
        return self.classify(x)
