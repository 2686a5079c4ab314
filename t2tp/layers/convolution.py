"""Convolutions, batch norm and group norm."""

from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.layers import variables
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.norms.batch_norm import batch_norm as normalized_batch
from t2tp.ops.norms.group_norm import group_norm as normalized_groups

# Names of batch norm's running averages.
BATCH_STATISTICS = ("moving_mean", "moving_variance")


@dataclass(frozen=True)
class Convolution:
    """A convolution with the variables `filters` and, optionally, `bias` in the current scope.

    The initial values are normal with a variance of 2 / (kernel height * kernel width * filters)
    (K. He et al., arXiv:1502.01852, section 2.2).

    Attributes:
      filters: the output channels.
      kernel: the kernel's height and width.
    """

    filters: mtf.Dimension
    kernel: int
    stride: int = 1
    use_bias: bool = False

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        """Applies the convolution to [batch..., height, width, channels].

        The result is [batch..., height / stride, width / stride, filters]; see
        `t2tp.ops.conv.convolution`.
        """
        channels = x.shape.dims[-1]
        if channels.name == self.filters.name:
            # The variable has dimensions for input and output channels, whose names must differ.
            # The renamed input channels are not split.
            x = mtf.rename_dimension(x, channels.name, f"input_{channels.name}")
            channels = x.shape.dims[-1]
        size = self.kernel
        window = [mtf.Dimension("kernel_height", size), mtf.Dimension("kernel_width", size)]
        stddev = (2.0 / (size * size * self.filters.size)) ** 0.5
        filters = variables.matrix(
            x.mesh, "filters", [*window, channels], [self.filters], stddev, x.dtype
        )
        y = convolution(x, filters, self.stride)
        if not self.use_bias:
            return y
        return y + variables.bias(x.mesh, "bias", [self.filters], x.dtype)


def batch_norm(x: mtf.Tensor, training: bool, momentum: float, epsilon: float) -> mtf.Tensor:
    """Normalizes by batch statistics in training, and by running averages otherwise.

    S. Ioffe and C. Szegedy (arXiv:1502.03167). Statistics are computed over the global batch in
    every layout. The running averages are the variables `moving_mean` and `moving_variance`. The
    training step itself assigns them, not the optimizer. The other variables are `norm_scale` and
    `norm_offset`.

    The input is [..., channels]. `momentum` is the decay of the running averages per step;
    `epsilon` is added to the variance.
    """
    channels = x.shape.dims[-1]
    scale, offset = _scale_and_offset(x.mesh, channels)
    mean_name, variance_name = BATCH_STATISTICS
    moving_mean = _average(x.mesh, mean_name, channels, tf1.zeros_initializer())
    moving_variance = _average(x.mesh, variance_name, channels, tf1.ones_initializer())
    if training:
        y, mean, variance = normalized_batch(x, scale, offset, epsilon)
        for average, value in ((moving_mean, mean), (moving_variance, variance)):
            change = mtf.cast(value, average.dtype) - average
            # A step whose gradients overflow changes no weights, but it updates the averages, which
            # would never recover from infinity.
            change = mtf.cwise(lambda x: tf.where(tf.math.is_finite(x), x, 0.0), [change])
            mtf.assign_add(average, (1.0 - momentum) * change)
        return y
    factor = scale * mtf.rsqrt(moving_variance + epsilon)
    y = (mtf.cast(x, tf.float32) - moving_mean) * factor + offset
    return mtf.cast(y, x.dtype)


def group_norm(x: mtf.Tensor, groups: int, epsilon: float) -> mtf.Tensor:
    """Normalizes each image over groups of channels; see `t2tp.ops.norms.group_norm`.

    The image x is [batch..., height, width, channels]. The variables are `norm_scale` and
    `norm_offset`.
    """
    scale, offset = _scale_and_offset(x.mesh, x.shape.dims[-1])
    return normalized_groups(x, scale, offset, groups, epsilon)


def _scale_and_offset(mesh: mtf.Mesh, channels: mtf.Dimension) -> tuple[mtf.Tensor, mtf.Tensor]:
    return (
        variables.norm(mesh, "norm_scale", [channels], 1.0),
        variables.norm(mesh, "norm_offset", [channels], 0.0),
    )


def _average(mesh: mtf.Mesh, name: str, channels: mtf.Dimension, initializer: object) -> mtf.Tensor:
    return mtf.get_variable(
        mesh, name, mtf.Shape([channels]), initializer=initializer, trainable=False
    )
