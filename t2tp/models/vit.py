"""The vision transformer: a picture is a sequence of patches.

A. Dosovitskiy et al., "An Image is Worth 16x16 Words" (arXiv:2010.11929), section 3.1.
"""

from __future__ import annotations

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.layers import variables
from t2tp.layers.attention import SelfAttention, Sequence
from t2tp.layers.convolution import Convolution
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.heads import Heads
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import WholePass
from t2tp.layers.stack import Layer, Residual, Stack
from t2tp.mesh.program import Mesh
from t2tp.models.image_classifier import ImageClassifier
from t2tp.nearest import nearest
from t2tp.ops.gather import checked_gather

_POOLINGS = ("class", "mean")


@registry.register_model
class Vit(ImageClassifier):
    """Patches with learned positions, pre-norm blocks with layer norms, and the class of a token
    of its own (`pooling=class`) or of the mean (`pooling=mean`).

    Splits like a language model: `heads`, `d_ff`, `batch`. Height and width may be split too as far
    as the patches; every patch then sees all others.
    """

    def logits(self, mesh: Mesh, inputs: mtf.Tensor, training: bool) -> mtf.Tensor:
        """See `ImageClassifier`.

        Raises:
          ValueError: patches do not divide the picture, or the pooling does not exist.
        """
        hparams = self.hparams
        if hparams.pooling not in _POOLINGS:
            known = nearest(hparams.pooling, _POOLINGS, "poolings")
            raise ValueError(f"pooling is {hparams.pooling!r}: {known}")
        x = self._patches(inputs)
        if hparams.pooling == "class":
            x = self._with_class_token(x)
        batch, length, d_model = x.shape.dims
        dropout = Dropout(hparams.dropout)
        positions = variables.weight(
            mesh, "positions", [length, d_model], hparams.initializer_stddev, x.dtype
        )
        x = dropout(x + positions, training)
        where = Sequence(mtf.broadcast(mtf.range(mesh, length, tf.int32), [batch, length]))
        x, _ = self._stack(dropout)(x, WholePass(where, training))
        if hparams.pooling == "mean":
            return self.classify(mtf.reduce_mean(x, reduced_dim=length))
        return self.classify(checked_gather(x, 0, length))

    def _patches(self, inputs: mtf.Tensor) -> mtf.Tensor:
        """[batch, height, width, channels] -> [batch, length, d_model], row by row."""
        size = self.hparams.patch_size
        batch, height, width, _ = inputs.shape.dims
        if height.size % size or width.size % size:
            raise ValueError(
                f"patch_size {size} must divide the pictures' {height.size} rows and"
                f" {width.size} columns."
            )
        d_model = mtf.Dimension("d_model", self.hparams.d_model)
        with tf1.variable_scope("patches"):
            x = Convolution(d_model, size, size, use_bias=True)(inputs)
        length = mtf.Dimension("length", (height.size // size) * (width.size // size))
        return mtf.reshape(x, [batch, length, d_model])

    def _with_class_token(self, x: mtf.Tensor) -> mtf.Tensor:
        """A learned token before all patches."""
        batch, length, d_model = x.shape.dims
        token = variables.zeros(x.mesh, "class_token", [d_model], x.dtype)
        one = mtf.Dimension(length.name, 1)
        token = mtf.broadcast(token, mtf.Shape([batch, one, d_model]))
        return mtf.concat([token, x], length.name)

    def _stack(self, dropout: Dropout) -> Stack:
        hparams = self.hparams
        layer = Layer(
            SelfAttention(Heads(hparams.num_heads, hparams.d_kv, use_bias=True), causal=False),
            FeedForward("gelu_erf", hparams.d_ff, use_bias=True, dropout=hparams.dropout),
        )
        residual = Residual(Norm("layer", hparams.norm_epsilon), "pre", dropout)
        return Stack([layer] * hparams.num_hidden_layers, residual, recompute=hparams.recompute)
