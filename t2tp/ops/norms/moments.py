"""Steps that norms share: combined moments, and the gradients of scale and bias."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import GradientOperation
from t2tp.lowering.staged_sums import reduce_sum
from t2tp.mesh.collectives import Collectives


def combined_moments(
    collectives: Collectives, axes: Sequence[int], own: Sequence[tuple[tf.Tensor, tf.Tensor]]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes mean and variance over slices of equal size, from each slice's mean and variance.

    `axes` split the reduced dimensions. If there are any, one collective all-gathers the means and
    variances. Otherwise the statistics are over this processor's slices only.

    The formula squares the differences between the slices' means, not the means. A mean far from 0
    therefore costs no accuracy (T. Chan et al., "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", 1979).

    `own` has the mean and the population variance of each of this processor's slices.
    """
    if not axes and len(own) == 1:
        return own[0]
    stacked = tf.stack([tf.stack(each) for each in own])
    gathered = collectives.gather_members(stacked, axes)
    means, variances = tf.unstack(tf.reshape(gathered, [-1, *stacked.shape[1:]]), axis=1)
    # The offsets are relative to one mean, so that averaging large means loses no precision.
    offsets = means - means[0]
    mean_offset = tf.reduce_mean(offsets, axis=0)
    between = tf.reduce_mean(tf.math.squared_difference(offsets, mean_offset), axis=0)
    return means[0] + mean_offset, tf.reduce_mean(variances, axis=0) + between


def set_vector_gradients(
    lowering: Lowering, op: GradientOperation, products: Sequence[tf.Tensor]
) -> None:
    """Sets the gradients w.r.t. scale and bias, all outputs of `op` except the first.

    `products` have the shape of the slice of the first input. Each gradient is the sum of a product
    over the dimensions that the output lacks. `t2tp.optim.per_row` may have added the dimension of
    the rows to these outputs. The sum is then not over the rows.
    """
    dims = op.inputs[0].shape.dims
    summed = [dim for dim in dims if dim not in op.outputs[1].shape.dims]
    axes = [dims.index(dim) for dim in summed]
    for output, product in zip(op.outputs[1:], products, strict=True):
        part = tf.cast(reduce_sum(product, axes), output.dtype)
        lowering.set_partial_sum(output, part, summed)
