"""Convolution over height and width, split over the mesh in any of its dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.layout import Layout
from t2tp.ops.cast import wide_dtype
from t2tp.ops.sliding import Window, Windows, check_windows, with_one_batch

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering
    from t2tp.mesh.spmd import SpmdMeshImpl


def convolution(
    x: mtf.Tensor, filters: mtf.Tensor, stride: int | tuple[int, int] = 1
) -> mtf.Tensor:
    """Convolution with zeros around the picture ("SAME" of TensorFlow).

    Every dimension but those of the kernel may be split. Where height or width is, processors
    exchange the edges that their windows share; where the channels of the input are, each makes a
    part of a sum; where those of the result are, each has its filters. The result is that of
    the convolution on one device.

    Args:
      x: [batch..., height, width, channels], floats.
      filters: [kernel_height, kernel_width, channels, filters], of the dtype of `x`.
      stride: of the windows, along height and width.

    Returns:
      [batch..., ceil(height / stride), ceil(width / stride), filters].

    Raises:
      ValueError: shapes or dtypes do not fit.
      LayoutError: of the program, if slices are too short for the windows, or the stride does not
        divide them.
    """
    strides = (stride, stride) if isinstance(stride, int) else stride
    if x.shape.ndims < 3 or filters.shape.ndims != 4:
        raise ValueError(
            f"convolution: x {x.shape} must be [batch..., height, width, channels], and filters"
            f" {filters.shape} [kernel_height, kernel_width, channels, filters]."
        )
    if filters.shape.dims[2] != x.shape.dims[-1] or filters.dtype != x.dtype:
        raise ValueError(
            f"convolution: the third dimension of filters {filters.dtype.name} {filters.shape} must"
            f" be the last one of x {x.dtype.name} {x.shape}, and their dtypes the same."
        )
    if min(strides) < 1:
        raise ValueError(f"convolution: strides must be at least 1, not {strides}.")
    return ConvolutionOperation(x, filters, strides).outputs[0]


class ConvolutionOperation(mtf.Operation):
    """Inputs x [batch..., height, width, channels] and filters; output [batch..., height, width,
    filters]."""

    def __init__(self, x: mtf.Tensor, filters: mtf.Tensor, strides: tuple[int, int]) -> None:
        super().__init__([x, filters], name="convolution")
        *batch, height, width, _ = x.shape.dims
        kernel_height, kernel_width, _, out = filters.shape.dims
        self.windows = (
            Window(height, kernel_height.size, strides[0]),
            Window(width, kernel_width.size, strides[1]),
        )
        shape = mtf.Shape([*batch, *(window.result for window in self.windows), out])
        self._outputs = [mtf.Tensor(self, shape, x.dtype)]
        self._splittable_dims, self._unsplittable_dims = _all_but_kernel(self, filters.shape)

    def check_layout(self, layout: Layout) -> None:
        """Refuses slices in which the windows cannot slide."""
        check_windows(layout, f"Convolution {self.name!r}", self.windows)

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
        x, filters = self.inputs
        (dy,) = grad_ys
        return [
            ConvolutionInputGradOperation(filters, dy, x.shape, self.windows).outputs[0],
            ConvolutionFiltersGradOperation(x, dy, filters.shape, self.windows).outputs[0],
        ]

    def lower(self, lowering: Lowering) -> None:
        x, filters = self.inputs
        mesh_impl = lowering.mesh_impl(self)
        windows = Windows(mesh_impl, *self.windows)
        y = tf.raw_ops.Conv2D(
            input=_seen(windows.with_edges(with_one_batch(lowering.slice(x))), self.windows),
            filter=lowering.slice(filters),
            **_options(self.windows, windows),
        )
        (output,) = self.outputs
        y = tf.reshape(y, mesh_impl.slice_shape(output.shape))
        lowering.set_partial_sum(output, y, [x.shape.dims[-1]])


class ConvolutionInputGradOperation(mtf.Operation):
    """Inputs filters and the gradient by the result; output the gradient by the input."""

    def __init__(
        self,
        filters: mtf.Tensor,
        dy: mtf.Tensor,
        x_shape: mtf.Shape,
        windows: tuple[Window, Window],
    ) -> None:
        super().__init__([filters, dy], name="convolution_input_grad")
        self._windows = windows
        self._outputs = [mtf.Tensor(self, x_shape, dy.dtype)]
        self._splittable_dims, self._unsplittable_dims = _all_but_kernel(self, filters.shape)

    def lower(self, lowering: Lowering) -> None:
        filters, dy = self.inputs
        (output,) = self.outputs
        mesh_impl = lowering.mesh_impl(self)
        windows = Windows(mesh_impl, *self._windows)
        shape = windows.shape_with_edges(mesh_impl.slice_shape(output.shape))
        dtype = _gradient_dtype(mesh_impl, dy)
        dx = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=_seen_shape(shape, self._windows),
            filter=tf.cast(lowering.slice(filters), dtype),
            out_backprop=tf.cast(with_one_batch(lowering.slice(dy)), dtype),
            **_options(self._windows, windows),
        )
        dx = tf.cast(dx, output.dtype)
        dx = windows.without_edges(_with_unseen(dx, shape, self._windows))
        dx = tf.reshape(dx, mesh_impl.slice_shape(output.shape))
        lowering.set_partial_sum(output, dx, [filters.shape.dims[-1]])


class ConvolutionFiltersGradOperation(mtf.Operation):
    """Inputs x and the gradient by the result; output the gradient by the filters."""

    def __init__(
        self,
        x: mtf.Tensor,
        dy: mtf.Tensor,
        filters_shape: mtf.Shape,
        windows: tuple[Window, Window],
    ) -> None:
        super().__init__([x, dy], name="convolution_filters_grad")
        self._windows = windows
        self._outputs = [mtf.Tensor(self, filters_shape, dy.dtype)]
        self._splittable_dims, self._unsplittable_dims = _all_but_kernel(self, filters_shape)

    def lower(self, lowering: Lowering) -> None:
        x, dy = self.inputs
        (output,) = self.outputs
        mesh_impl = lowering.mesh_impl(self)
        windows = Windows(mesh_impl, *self._windows)
        dtype = _gradient_dtype(mesh_impl, x)
        seen = _seen(windows.with_edges(with_one_batch(lowering.slice(x))), self._windows)
        d_filters = tf.raw_ops.Conv2DBackpropFilter(
            input=tf.cast(seen, dtype),
            filter_sizes=mesh_impl.slice_shape(output.shape),
            out_backprop=tf.cast(with_one_batch(lowering.slice(dy)), dtype),
            **_options(self._windows, windows),
        )
        d_filters = tf.cast(d_filters, output.dtype)
        lowering.set_partial_sum(output, d_filters, x.shape.dims[:-1])


def _all_but_kernel(op: mtf.Operation, filters: mtf.Shape) -> tuple[frozenset, frozenset]:
    """Splittable and unsplittable dimensions."""
    kernel = [dim.name for dim in filters.dims[:2]]
    return op._initialize_splittable_and_unsplittable_dims("splittable", kernel)


def _gradient_dtype(mesh_impl: SpmdMeshImpl, x: mtf.Tensor) -> tf.DType:
    """What gradients are computed in. Of 16 bits the kernels for CPUs sum in 16 bits, which is too
    little for all positions of all images, and takes several times as long."""
    return wide_dtype(x) if mesh_impl.on_cpu else x.dtype


def _options(sliding: tuple[Window, Window], windows: Windows) -> dict[str, Any]:
    """Attributes that the three kernels share."""
    strides = [window.stride // step for window, step in zip(sliding, _steps(sliding), strict=True)]
    return {"strides": [1, *strides, 1], "padding": windows.padding}


def _steps(sliding: tuple[Window, Window]) -> list[int]:
    """How far windows of one element go; 1 for larger ones.

    What they skip is left out beforehand, which costs less than to let the kernels skip it. (And
    oneDNN's gradient of strided 1x1 convolutions has crashed programs of several CPU devices.)
    """
    return [window.stride if window.size == 1 else 1 for window in sliding]


def _seen(x: tf.Tensor, sliding: tuple[Window, Window]) -> tf.Tensor:
    """[batch, height, width, channels] without the rows and columns that no window sees."""
    rows, columns = _steps(sliding)
    return x if rows == columns == 1 else x[:, ::rows, ::columns]


def _seen_shape(shape: list[int], sliding: tuple[Window, Window]) -> list[int]:
    """The shape of `_seen` of an x of some shape."""
    batch, height, width, channels = shape
    rows, columns = _steps(sliding)
    return [batch, -(-height // rows), -(-width // columns), channels]


def _with_unseen(dx: tf.Tensor, shape: list[int], sliding: tuple[Window, Window]) -> tf.Tensor:
    """The gradient by what `_seen` gave -> the gradient by its x, of this shape."""
    rows, columns = _steps(sliding)
    if rows == columns == 1:
        return dx
    return tf.raw_ops.StridedSliceGrad(
        shape=shape, begin=[0] * 4, end=shape, strides=[1, rows, columns, 1], dy=dx
    )
