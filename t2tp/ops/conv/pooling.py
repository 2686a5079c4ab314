"""Max pooling over height and width. A layout may split both."""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.mesh.layout import Layout
from t2tp.ops.conv.sliding_window import Window, Windows, check_windows, with_one_batch


def max_pool(x: upstream.Tensor, size: int, stride: int) -> upstream.Tensor:
    """Computes the max of each window (padding "SAME"). Any dimension may be split.

    Args:
      x: [batch..., height, width, channels], floats.
      size: height and width of a window.
      stride: distance between windows, in both directions.

    Returns:
      [batch..., ceil(height / stride), ceil(width / stride), channels].

    Raises:
      ValueError: x has fewer than three dimensions.
      LayoutError: (when the program is built) slices are too short for the windows, or the stride
        does not divide them.
    """
    if x.shape.ndims < 3:
        raise ValueError(f"max_pool: x {x.shape} must be [batch..., height, width, channels].")
    height, width = x.shape.dims[-3:-1]
    windows = (Window(height, size, stride), Window(width, size, stride))
    return MaxPoolOperation(x, windows).outputs[0]


class MaxPoolOperation(Operation):
    """Computes max pooling.

    Input: x [batch..., height, width, channels]. Output: like x, with fewer rows and columns.
    """

    signature = Signature(ordered=ALL)

    def __init__(self, x: upstream.Tensor, windows: tuple[Window, Window]) -> None:
        super().__init__([x], name="max_pool")
        self._windows = windows
        *batch, _, _, channels = x.shape.dims
        shape = upstream.Shape([*batch, *(window.result for window in windows), channels])
        self._outputs = [upstream.Tensor(self, shape, x.dtype)]

    def check_layout(self, layout: Layout) -> None:
        """Checks that a layout's slices suit the windows."""
        check_windows(layout, f"Pooling {self.name!r}", self._windows)

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        inputs = [*self.inputs, *self.outputs, grad_ys[0]]
        return MaxPoolGradOperation("max_pool_grad", self, inputs, *self.inputs).outputs

    def lower(self, lowering: Lowering) -> None:
        (output,) = self.outputs
        mesh_impl = lowering.mesh_impl(self)
        x = _with_halo(mesh_impl, self._windows, lowering.slice(self.inputs[0]))
        y = tf.raw_ops.MaxPool(input=x, **_options(self._windows))
        lowering.set_slice(output, tf.reshape(y, mesh_impl.slice_shape(output.shape)))


class MaxPoolGradOperation(GradientOperation):
    """Inputs: x, the pooled y and dy. Output: dx."""

    def lower(self, lowering: Lowering) -> None:
        x, y, dy = (lowering.slice(tensor) for tensor in self.inputs)
        mesh_impl = lowering.mesh_impl(self)
        windows: tuple[Window, Window] = self.forward._windows
        halo, y, dy = _with_halo(mesh_impl, windows, x), with_one_batch(y), with_one_batch(dy)
        if mesh_impl.target.compiles_step:
            dx = _gradient_of_first_maxima(halo, y, dy, windows)
        else:
            options = _options(windows)
            dx = tf.raw_ops.MaxPoolGrad(orig_input=halo, orig_output=y, grad=dy, **options)
        dx = Windows(mesh_impl, *windows, pads_all=True).without_halo(dx)
        lowering.set_slice(self.outputs[0], tf.reshape(dx, x.shape))


def _gradient_of_first_maxima(
    x: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, sliding: tuple[Window, Window]
) -> tf.Tensor:
    """Returns the result of MaxPoolGrad, whose XLA kernel for GPUs is not deterministic.

    Each window's gradient goes to its first maximum, in the order of rows and columns.
    """
    dx, is_found = tf.zeros_like(x), tf.zeros_like(y, tf.bool)
    for place in itertools.product(*(range(window.size) for window in sliding)):
        begin = [0, *place, 0]
        strides = [1, *(window.stride for window in sliding), 1]
        last = zip(place, y.shape[1:3], strides[1:3], strict=True)
        end = [x.shape[0], *(i + (n - 1) * stride + 1 for i, n, stride in last), x.shape[3]]
        is_first = ~is_found & (tf.strided_slice(x, begin, end, strides) == y)
        is_found |= is_first
        part = tf.where(is_first, dy, tf.zeros_like(dy))
        dx += tf.raw_ops.StridedSliceGrad(
            shape=x.shape, begin=begin, end=end, strides=strides, dy=part
        )
    return dx


def _with_halo(mesh_impl: SpmdMeshImpl, sliding: tuple[Window, Window], x: tf.Tensor) -> tf.Tensor:
    """Reshapes x to [batch, height, width, channels] and adds the halo of the windows.

    Outside the image, the halo is the dtype's lowest number.
    """
    x = Windows(mesh_impl, *sliding, pads_all=True).with_halo(with_one_batch(x))
    is_inside = []
    for window, size in zip(sliding, x.shape[1:3], strict=True):
        (begin,) = mesh_impl.slice_begin_tensors(upstream.Shape([window.dim]))
        position = begin - window.padding[0] + np.arange(size, dtype=np.int32)
        is_inside.append((position >= 0) & (position < window.dim.size))
    is_inside = tf.logical_and(is_inside[0][:, None], is_inside[1][None, :])
    return tf.where(is_inside[None, :, :, None], x, x.dtype.min)


def _options(sliding: tuple[Window, Window]) -> dict[str, Any]:
    sizes = [1, *(window.size for window in sliding), 1]
    strides = [1, *(window.stride for window in sliding), 1]
    return {"ksize": sizes, "strides": strides, "padding": "VALID"}
