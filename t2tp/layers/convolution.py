"""Convolutions, batch norm and group norm."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.choices import CONVOLUTION_NORM_TYPES
from t2tp.layers import variables
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.group_norm import group_norm
from t2tp.suggestions import check_known

# The variables of a batch norm that evaluation uses.
BATCH_STATISTICS = ("moving_mean", "moving_variance")


class Convolution:
    """A convolution; variables `filters` and, optionally, `bias` of the current scope.

    Initialized as in K. He et al. (arXiv:1502.01852), section 2.2: normal, with a variance of
    2 / (kernel height * kernel width * filters).
    """

    def __init__(
        self, filters: mtf.Dimension, kernel: int, stride: int = 1, *, use_bias: bool = False
    ) -> None:
        """Sets the dimensions.

        Args:
          filters: the dimension of the output channels.
          kernel: height and width of the kernel.
          stride: stride in both directions.
          use_bias: whether to add a bias.
        """
        self._filters = filters
        self._kernel = kernel
        self._stride = stride
        self._use_bias = use_bias

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        """Applies the convolution; see `t2tp.ops.conv.convolution`.

        It maps [batch..., height, width, channels] to [batch..., height / stride, width / stride,
        filters].
        """
        channels = x.shape.dims[-1]
        if channels.name == self._filters.name:
            # The filters have both dimensions, so their names must differ. The input's channels are
            # then not split.
            x = mtf.rename_dimension(x, channels.name, f"input_{channels.name}")
            channels = x.shape.dims[-1]
        size = self._kernel
        window = [mtf.Dimension("kernel_height", size), mtf.Dimension("kernel_width", size)]
        stddev = (2.0 / (size * size * self._filters.size)) ** 0.5
        filters = variables.matrix(
            x.mesh, "filters", [*window, channels], [self._filters], stddev, x.dtype
        )
        y = convolution(x, filters, self._stride)
        if not self._use_bias:
            return y
        return y + variables.bias(x.mesh, "bias", [self._filters], x.dtype)


class BatchNorm:
    """Batch norm (arXiv:1502.03167): batch statistics in training, running averages otherwise.

    Statistics are of the global batch, however it is split. The running averages, `moving_mean` and
    `moving_variance`, are not trainable; training steps update them.
    """

    def __init__(self, momentum: float, epsilon: float) -> None:
        """Sets momentum and epsilon.

        Args:
          momentum: the decay of the running averages per step.
          epsilon: added to the variance.

        Raises:
          ValueError: the momentum is not in [0, 1).
        """
        if not 0 <= momentum < 1:
            raise ValueError(f"norm_momentum must be in [0, 1), not {momentum}.")
        self._momentum = momentum
        self._epsilon = epsilon

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Normalizes [..., channels]; variables `norm_scale`, `norm_offset` and the averages."""
        channels = x.shape.dims[-1]
        scale, offset = _scale_and_offset(x.mesh, channels)
        mean_name, variance_name = BATCH_STATISTICS
        moving_mean = _average(x.mesh, mean_name, channels, tf1.zeros_initializer())
        moving_variance = _average(x.mesh, variance_name, channels, tf1.ones_initializer())
        if training:
            y, mean, variance = batch_norm(x, scale, offset, self._epsilon)
            for average, value in ((moving_mean, mean), (moving_variance, variance)):
                value = mtf.cast(value, average.dtype)
                mtf.assign_add(average, (1.0 - self._momentum) * (value - average))
            return y
        factor = scale * mtf.rsqrt(moving_variance + self._epsilon)
        y = (mtf.cast(x, tf.float32) - moving_mean) * factor + offset
        return mtf.cast(y, x.dtype)


class GroupNorm:
    """Group norm (arXiv:1803.08494): independent of the batch, the same in evaluation."""

    def __init__(self, groups: int, epsilon: float) -> None:
        """Sets groups and epsilon; see `t2tp.ops.norms.group_norm`."""
        self._groups = groups
        self._epsilon = epsilon

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Normalizes [batch..., height, width, channels]; variables `norm_scale`, `norm_offset`."""
        del training
        scale, offset = _scale_and_offset(x.mesh, x.shape.dims[-1])
        return group_norm(x, scale, offset, self._groups, self._epsilon)


def make_norm(
    norm_type: str, *, momentum: float, epsilon: float, groups: int
) -> BatchNorm | GroupNorm:
    """Returns the norm with the given name; arguments as of `BatchNorm` and `GroupNorm`.

    Raises:
      ValueError: the name is unknown.
    """
    check_known(norm_type, CONVOLUTION_NORM_TYPES, "norms", f"norm_type is {norm_type!r}")
    return BatchNorm(momentum, epsilon) if norm_type == "batch" else GroupNorm(groups, epsilon)


def _scale_and_offset(mesh: mtf.Mesh, channels: mtf.Dimension) -> tuple[mtf.Tensor, mtf.Tensor]:
    return (
        variables.norm(mesh, "norm_scale", [channels], 1.0),
        variables.norm(mesh, "norm_offset", [channels], 0.0),
    )


def _average(mesh: mtf.Mesh, name: str, channels: mtf.Dimension, initializer: object) -> mtf.Tensor:
    return mtf.get_variable(
        mesh, name, mtf.Shape([channels]), initializer=initializer, trainable=False
    )
