"""Group norm: normalizes each image over groups of channels."""

import math
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import DROPPED, Signature
from t2tp.lowering.staged_sums import reduce_mean
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.ops.cast import wide_dtype
from t2tp.ops.norms.moments import set_vector_gradients


def group_norm(
    x: upstream.Tensor, scale: upstream.Tensor, offset: upstream.Tensor, groups: int, epsilon: float
) -> upstream.Tensor:
    """Computes `(x - mean) / sqrt(variance + epsilon) * scale + offset` per group of channels.

    Mean and variance are over height, width and the channels of a group.

    Y. Wu and K. He, "Group Normalization" (arXiv:1803.08494), section 3. Any dimension may be
    split. The norm is computed in at least float32.

    Args:
      x: [batch..., height, width, channels].
      scale: [channels].
      offset: [channels].
      groups: number of groups; must divide the number of channels.
      epsilon: added to the variance.

    Returns:
      a tensor like x.

    Raises:
      ValueError: shapes do not match, or groups do not divide the channels.
      LayoutError: when the program is built, if an axis that splits the channels does not divide
        the groups.
    """
    if x.shape.ndims < 3 or not scale.shape.dims == offset.shape.dims == x.shape.dims[-1:]:
        raise ValueError(
            f"group_norm: x {x.shape} must be [batch..., height, width, channels], scale"
            f" {scale.shape} and offset {offset.shape} [channels]."
        )
    channels = x.shape.dims[-1]
    if groups < 1 or channels.size % groups:
        works = [n for n in range(1, channels.size + 1) if channels.size % n == 0]
        examples = ", ".join(str(n) for n in sorted(works, key=lambda n: abs(n - groups))[:3])
        raise ValueError(f"group_norm: {groups} groups do not divide {channels}: {examples} would.")
    return GroupNormOperation([x, scale, offset], groups, epsilon).outputs[0]


class GroupNormOperation(Operation):
    """Computes group norm.

    Inputs: x [batch..., height, width, channels], scale and offset [channels]. Output: like x.
    """

    def __init__(self, inputs: Sequence[upstream.Tensor], groups: int, epsilon: float) -> None:
        super().__init__(list(inputs), name="group_norm")
        self._groups = groups
        self._epsilon = epsilon
        *_, height, width, channels = inputs[0].shape.dims
        self.signature = Signature(combined=[height, width], ordered=[channels], cost="norm")
        self.set_outputs(inputs[0])

    def check_layout(self, layout: Layout) -> None:
        """Checks that no group is split over slices."""
        channels = self.inputs[0].shape.dims[-1]
        axis = layout.axis_of(channels.name)
        if axis is not None and self._groups % axis.size:
            raise LayoutError(
                f"Operation {self.name!r} normalizes {self._groups} groups of"
                f" {channels.name!r}, and mesh axis {axis.name!r} of size {axis.size} does not"
                f" divide them: choose a multiple of {axis.size} groups, or drop the rule"
                f" '{channels.name}:{axis.name}'."
            )

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        inputs, outputs = [*self.inputs, *grad_ys], self.inputs
        return GroupNormGradOperation(
            "group_norm_grad", self, inputs, *outputs, summed=DROPPED
        ).outputs

    def lower(self, lowering: Lowering) -> None:
        grouped = _Grouped(lowering, self.inputs[0], self._groups, self._epsilon)
        dtype = wide_dtype(self.inputs[0])
        scale, offset = (tf.cast(lowering.slice(tensor), dtype) for tensor in self.inputs[1:])
        y = grouped.whole(grouped.normed) * scale + offset
        lowering.set_slice(self.outputs[0], tf.cast(y, self.outputs[0].dtype))


class GroupNormGradOperation(GradientOperation):
    """Inputs: x, scale, offset and dy. Outputs: the gradients w.r.t. x, scale and offset.

    The statistics and the normalized x are recomputed from x, to save memory.
    """

    def lower(self, lowering: Lowering) -> None:
        forward = self.forward
        grouped = _Grouped(lowering, self.inputs[0], forward._groups, forward._epsilon)
        dtype = wide_dtype(self.inputs[0])
        scale, dy = (tf.cast(lowering.slice(self.inputs[i]), dtype) for i in (1, 3))
        scaled = grouped.in_groups(dy * scale)
        mean, projection = tf.unstack(grouped.means(tf.stack([scaled, scaled * grouped.normed])))
        dx = grouped.inverse * (scaled - mean - grouped.normed * projection)
        lowering.set_slice(self.outputs[0], tf.cast(grouped.whole(dx), self.outputs[0].dtype))
        set_vector_gradients(lowering, self, [dy * grouped.whole(grouped.normed), dy])


class _Grouped:
    """A slice of images as [batch, height * width, group, channel of the group].

    Attributes:
      normed: (x - mean) / standard deviation.
      inverse: 1 / standard deviation [batch, 1, group, 1].
    """

    def __init__(
        self, lowering: Lowering, tensor: upstream.Tensor, groups: int, epsilon: float
    ) -> None:
        mesh_impl = lowering.mesh_impl(tensor)
        self._collectives = mesh_impl.collectives
        self._axes = mesh_impl.axes_of(tensor.shape.dims[-3:-1])
        self._slices = math.prod(mesh_impl.shape[axis].size for axis in self._axes)
        self._shape = mesh_impl.slice_shape(tensor.shape)
        self._group_size = tensor.shape.dims[-1].size // groups
        x = self.in_groups(tf.cast(lowering.slice(tensor), wide_dtype(tensor)))
        centred = x - self.means(x)
        self.inverse = tf.math.rsqrt(self.means(tf.square(centred)) + epsilon)
        self.normed = centred * self.inverse

    def in_groups(self, x: tf.Tensor) -> tf.Tensor:
        """Reshapes to [batch, height * width, group, channel]."""
        *batch, height, width, channels = self._shape
        size = self._group_size
        return tf.reshape(x, [math.prod(batch), height * width, channels // size, size])

    def whole(self, x: tf.Tensor) -> tf.Tensor:
        """Reverses `in_groups`."""
        return tf.reshape(x, self._shape)

    def means(self, x: tf.Tensor) -> tf.Tensor:
        """Averages [..., batch, position, group, channel] to [..., batch, 1, group, 1].

        The mean is over all slices of an image.
        """
        mean = reduce_mean(x, [-3, -1], keepdims=True)
        return self._collectives.allreduce(mean, self._axes, "Add") / self._slices
