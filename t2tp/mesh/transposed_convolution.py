"""Transposed convolutions of slices: mesh-tensorflow's take no split output channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def lower_transposed_convolution(
    op: mtf.Conv2dTransposeOperation | mtf.Conv3dTransposeOperation, lowering: Lowering
) -> None:
    """Makes a slice of [batch..., places..., filters] of inputs [batch..., places..., channels] and
    filters [window..., filters, channels]; channels and filters may be split, places may not."""
    x, filters = op.inputs
    (y,) = op.outputs
    sizes = lowering.mesh_impl(op).slice_shape(y.shape)
    picture = filters.shape.ndims - 1  # dimensions of one: places and channels
    slice_of_x = lowering.slice(x)
    flat = tf.reshape(slice_of_x, [-1, *slice_of_x.shape[-picture:]])
    inverse = tf.nn.conv2d_transpose if picture == 3 else tf.nn.conv3d_transpose
    made = inverse(
        flat,
        lowering.slice(filters),
        output_shape=[flat.shape[0], *sizes[-picture:]],
        strides=op._strides,
        padding=op._padding,
    )
    lowering.set_partial_sum(y, tf.reshape(made, sizes), x.shape.dims[-1:])
