"""Residual networks. A mesh can split images along height and width.

K. He et al., "Deep Residual Learning for Image Recognition" (arXiv:1512.03385). A bottleneck's
stride is in its 3 x 3 convolution (known as v1.5).
"""

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.layers.convolution import Convolution, batch_norm, group_norm
from t2tp.models.image_classifier import ImageClassifier
from t2tp.ops.conv.pooling import max_pool

# Type of block -> number of output channels / number of inner filters.
_EXPANSION = {"basic": 1, "bottleneck": 4}


@registry.register_model
class MtfResnet(ImageClassifier):
    """A stem, stages of blocks, and global average pooling.

    A layout can split `height` and `width`, so that an image is distributed over devices. It can
    also split `filters`, the inner dimension of a block, like a transformer's `d_ff`. `d_model` is
    the dimension of the residual. Height and width halve from stage to stage, and a mesh axis that
    divides 56 rows may not divide 7. From stage `num_partitioned_stages` on, the two dimensions are
    therefore named `whole_height` and `whole_width`, and rules for `height` and `width` no longer
    apply.
    """

    def logits(self, mesh: Mesh, inputs: mtf.Tensor, training: bool) -> mtf.Tensor:
        """See `ImageClassifier`.

        Raises:
          ValueError: the number of `filter_sizes` does not match the stem and `layer_sizes`.
        """
        hparams = self.hparams
        if len(hparams.filter_sizes) != len(hparams.layer_sizes) + 1:
            raise ValueError(
                f"filter_sizes {hparams.filter_sizes} must be one for the stem and one for each of"
                f" the {len(hparams.layer_sizes)} stages that layer_sizes {hparams.layer_sizes}"
                " says."
            )
        with tf1.variable_scope("stem"):
            x = self._stem(inputs, training)
        for stage, layers in enumerate(hparams.layer_sizes):
            if stage == hparams.num_partitioned_stages:
                x = mtf.rename_dimension(x, "height", "whole_height")
                x = mtf.rename_dimension(x, "width", "whole_width")
            for layer in range(layers):
                stride = 2 if stage and not layer else 1
                with tf1.variable_scope(f"stage_{stage}/layer_{layer:02d}"):
                    x = self._block(x, hparams.filter_sizes[stage + 1], stride, training)
        batch, *_, d_model = x.shape.dims
        return self.classify(mtf.reduce_mean(x, output_shape=mtf.Shape([batch, d_model])))

    def _stem(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Computes [batch, height, width, channels] -> [batch, height, width, d_model].

        The `imagenet` stem halves height and width twice.
        """
        d_model = mtf.Dimension("d_model", self.hparams.filter_sizes[0])
        is_large = self.hparams.stem == "imagenet"
        x = self._convolved(x, Convolution(d_model, *((7, 2) if is_large else (3, 1))), training)
        x = mtf.relu(x)
        return max_pool(x, 3, 2) if is_large else x

    def _block(self, x: mtf.Tensor, size: int, stride: int, training: bool) -> mtf.Tensor:
        """Applies a block with `size` inner filters; it divides height and width by the stride."""
        filters = mtf.Dimension("filters", size)
        d_model = mtf.Dimension("d_model", size * _EXPANSION[self.hparams.block])
        if self.hparams.block == "basic":
            convolutions = [Convolution(filters, 3, stride), Convolution(d_model, 3)]
        else:
            convolutions = [
                Convolution(filters, 1),
                Convolution(filters, 3, stride),
                Convolution(d_model, 1),
            ]
        y = x
        for number, layer in enumerate(convolutions):
            with tf1.variable_scope(f"convolution_{number}"):
                y = self._convolved(y, layer, training)
            if number < len(convolutions) - 1:
                y = mtf.relu(y)
        if y.shape != x.shape:
            with tf1.variable_scope("shortcut"):
                x = self._convolved(x, Convolution(d_model, 1, stride), training)
        return mtf.relu(x + y)

    def _convolved(
        self, x: mtf.Tensor, layer: Callable[[mtf.Tensor], mtf.Tensor], training: bool
    ) -> mtf.Tensor:
        """Applies a convolution and a norm."""
        hparams = self.hparams
        y = layer(x)
        if hparams.norm_type == "batch":
            return batch_norm(y, training, hparams.norm_momentum, hparams.norm_epsilon)
        return group_norm(y, hparams.norm_groups, hparams.norm_epsilon)
