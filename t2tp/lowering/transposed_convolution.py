"""Transposed convolutions with split output channels, which mesh-tensorflow does not support."""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering


def lower_transposed_convolution(
    op: upstream.Conv2dTransposeOperation | upstream.Conv3dTransposeOperation, lowering: Lowering
) -> None:
    """Computes a slice of a transposed convolution.

    The inputs are [batch..., positions..., channels] and [window..., filters, channels], the output
    is [batch..., positions..., filters]. Channels and filters may be split, but not positions.
    """
    x, filters = op.inputs
    (y,) = op.outputs
    sizes = lowering.mesh_impl(op).slice_shape(y.shape)
    image = filters.shape.ndims - 1  # The number of dimensions of an image: positions and channels.
    slice_of_x = lowering.slice(x)
    flat = tf.reshape(slice_of_x, [-1, *slice_of_x.shape[-image:]])
    inverse = tf.nn.conv2d_transpose if image == 3 else tf.nn.conv3d_transpose
    made = inverse(
        flat,
        lowering.slice(filters),
        output_shape=[flat.shape[0], *sizes[-image:]],
        strides=op._strides,
        padding=op._padding,
    )
    lowering.set_partial_sum(y, tf.reshape(made, sizes), x.shape.dims[-1:])
