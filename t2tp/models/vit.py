"""The vision transformer: a transformer encoder over image patches.

A. Dosovitskiy et al., "An Image is Worth 16x16 Words" (arXiv:2010.11929), section 3.1.
"""

import operator

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.layers import variables
from t2tp.layers.attention import SelfAttention
from t2tp.layers.convolution import Convolution
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.heads import Heads
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import FullForward, SequenceInfo
from t2tp.layers.stack import Stack
from t2tp.layers.transformer_layer import Layer, Residual
from t2tp.models.image_classifier import ImageClassifier


@registry.register_model
class Vit(ImageClassifier):
    """Vision transformer: a pre-norm encoder of image patches with learned positions.

    The logits are computed from a class token (`pooling=class`), or from the mean of all patches
    (`pooling=mean`).

    A layout can split `batch`, `heads` and `d_ff`, as in a language model. It can also split the
    image's height and width in the patch embedding. Attention is over all patches.
    """

    def logits(self, mesh: Mesh, inputs: mtf.Tensor, training: bool) -> mtf.Tensor:
        """See `ImageClassifier`.

        Raises:
          ValueError: patches do not divide the image, or the images do not fit `image_shape`,
            `image_mean` or `image_std`.
        """
        hparams = self.hparams
        self._check_shape(inputs)
        x = self._patches(self._normalized(inputs))
        if hparams.pooling == "class":
            x = self._with_class_token(x)
        batch, length, d_model = x.shape.dims
        dropout = Dropout(hparams.dropout)
        positions = variables.embedding(
            mesh, "positions", [length], d_model, hparams.initializer_stddev, x.dtype
        )
        x = dropout(x + positions, training)
        sequence = SequenceInfo(mtf.broadcast(mtf.range(mesh, length, tf.int32), [batch, length]))
        x, _ = self._stack(dropout)(x, FullForward(sequence, training))
        if hparams.pooling == "mean":
            return self.classify(mtf.reduce_mean(x, reduced_dim=length))
        return self.classify(mtf.gather(x, 0, length, is_checked=True))

    def _check_shape(self, inputs: mtf.Tensor) -> None:
        of_problem, of_model = inputs.shape.to_integer_list[1:], self.hparams.image_shape
        if of_model and of_model != of_problem:
            raise ValueError(
                f"the problem's images have the shape {of_problem} and the model's image_shape is"
                f" {of_model}: use a problem with such images, or image_shape=[] to train"
                " positions for these"
            )

    def _normalized(self, inputs: mtf.Tensor) -> mtf.Tensor:
        """Subtracts `image_mean` from the channels and divides them by `image_std`."""
        x, channels = inputs, inputs.shape.dims[-1]
        for name, apply in (("image_mean", operator.sub), ("image_std", operator.truediv)):
            values = self.hparams.get(name)
            if values and len(values) != channels.size:
                raise ValueError(
                    f"{name} has {len(values)} values, and images have {channels.size} channels:"
                    f" give a value for each channel, or {name}=[] to leave the images as they are"
                )
            if values:
                of_channels = mtf.import_tf_tensor(
                    x.mesh, tf.constant(values, x.dtype), mtf.Shape([channels])
                )
                x = apply(x, of_channels)
        return x

    def _patches(self, inputs: mtf.Tensor) -> mtf.Tensor:
        """Embeds patches: [batch, height, width, channels] -> [batch, length, d_model]."""
        size = self.hparams.patch_size
        batch, height, width, _ = inputs.shape.dims
        if height.size % size or width.size % size:
            raise ValueError(
                f"patch_size {size} must divide the images' {height.size} rows and"
                f" {width.size} columns."
            )
        d_model = mtf.Dimension("d_model", self.hparams.d_model)
        with tf1.variable_scope("patches"):
            x = Convolution(d_model, size, size, use_bias=True)(inputs)
        length = mtf.Dimension("length", (height.size // size) * (width.size // size))
        return mtf.reshape(x, [batch, length, d_model])

    def _with_class_token(self, x: mtf.Tensor) -> mtf.Tensor:
        """Prepends a learned class token: [batch, length + 1, d_model]."""
        batch, length, d_model = x.shape.dims
        token = variables.embedding(x.mesh, "class_token", [], d_model, 0.0, x.dtype)
        one = mtf.Dimension(length.name, 1)
        token = mtf.broadcast(token, mtf.Shape([batch, one, d_model]))
        return mtf.concat([token, x], length.name)

    def _stack(self, dropout: Dropout) -> Stack:
        hparams = self.hparams
        layer = Layer(
            SelfAttention(
                Heads(hparams.num_heads, hparams.d_kv, use_bias=True, qkv_bias=hparams.qkv_bias),
                causal=False,
                attention_dropout=hparams.attention_dropout,
            ),
            FeedForward(hparams.mlp, hparams.d_ff, use_bias=True, relu_dropout=hparams.dropout),
        )
        residual = Residual(Norm("layer", hparams.norm_epsilon), "pre", dropout)
        return Stack([layer] * hparams.num_hidden_layers, residual, recompute=hparams.recompute)
