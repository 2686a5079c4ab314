"""Convolution over height and width. All dimensions except the kernel's may be split."""

from __future__ import annotations

import math

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import GradientOperation, Operation, check_rows
from t2tp.lowering.signature import ALL, DROPPED, Signature
from t2tp.mesh.layout import Layout
from t2tp.ops.cast import wide_dtype
from t2tp.ops.conv.sliding_window import Window, Windows, check_windows, with_one_batch


def convolution(
    x: upstream.Tensor, filters: upstream.Tensor, stride: int | tuple[int, int] = 1
) -> upstream.Tensor:
    """Computes a convolution with zero padding (TensorFlow's "SAME").

    A layout may split every dimension except the kernel's. With split height or width, processors
    exchange halos. With split input channels, each processor computes a partial sum.

    Args:
      x: [batch..., height, width, channels], floats.
      filters: [kernel_height, kernel_width, channels, filters], same dtype as `x`.
      stride: distance between windows, along height and width.

    Returns:
      [batch..., ceil(height / stride), ceil(width / stride), filters].

    Raises:
      ValueError: shapes or dtypes do not match.
      LayoutError: (when the program is built) slices are too short for the windows, or the stride
        does not divide them.
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
    return ConvolutionOperation(x, filters, strides).outputs[0]


class ConvolutionOperation(Operation):
    """Computes a convolution.

    Inputs: x [batch..., height, width, channels] and filters. Output: [batch..., height, width,
      filters].
    """

    def __init__(
        self, x: upstream.Tensor, filters: upstream.Tensor, strides: tuple[int, int]
    ) -> None:
        super().__init__([x, filters], name="convolution")
        *batch, height, width, _ = x.shape.dims
        kernel_height, kernel_width, _, out = filters.shape.dims
        self.windows = (
            Window(height, kernel_height.size, strides[0]),
            Window(width, kernel_width.size, strides[1]),
        )
        shape = upstream.Shape([*batch, *(window.result for window in self.windows), out])
        self.signature = Signature(
            summed=filters.shape.dims[2:3],
            ordered=ALL,
            whole=filters.shape.dims[:2],
            cost="convolution",
        )
        self.set_outputs((shape, x.dtype))

    @property
    def matmul_flops(self) -> int:
        """The FLOPs of the convolution as a matmul of its windows with the filters."""
        filters = self.inputs[1].shape
        return 2 * self.outputs[0].shape.size * filters.size // filters.dims[-1].size

    def check_layout(self, layout: Layout) -> None:
        """Checks that a layout's slices suit the windows."""
        check_windows(layout, f"Convolution {self.name!r}", self.windows)
        check_rows(self, layout, self.inputs[0].shape.dims[:-3])

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        x, filters = self.inputs
        by_x = ConvolutionInputGradOperation(
            "convolution_input_grad", self, [filters, *grad_ys], x, summed=filters.shape.dims[3:]
        )
        by_filters = ConvolutionFiltersGradOperation(
            "convolution_filters_grad", self, [x, *grad_ys], filters, summed=DROPPED
        )
        return [*by_x.outputs, *by_filters.outputs]

    def slice_flops(self, layout: Layout) -> float:
        return _slice_flops(layout, self.outputs[0], self.inputs[1])

    def lower(self, lowering: Lowering) -> None:
        (x, filters), (output,) = self.inputs, self.outputs
        mesh_impl = lowering.mesh_impl(self)
        windows = _KernelWindows(mesh_impl, *self.windows)
        y = tf.raw_ops.Conv2D(
            input=windows.seen(lowering.slice(x)), filter=lowering.slice(filters), **windows.options
        )
        y = tf.reshape(y, mesh_impl.slice_shape(output.shape))
        lowering.set_partial_sum(output, y, [x.shape.dims[-1]])


class ConvolutionInputGradOperation(GradientOperation):
    """Inputs: filters and dy. Output: the gradient w.r.t. the input."""

    def slice_flops(self, layout: Layout) -> float:
        return _slice_flops(layout, self.inputs[1], self.inputs[0])

    def lower(self, lowering: Lowering) -> None:
        filters, dy = self.inputs
        (output,) = self.outputs
        mesh_impl = lowering.mesh_impl(self)
        windows = _KernelWindows(mesh_impl, *self.forward.windows)
        sizes = mesh_impl.slice_shape(output.shape)
        shape = windows.shape_with_halo(sizes)
        dtype = _gradient_dtype(mesh_impl, dy)
        dx = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=windows.seen_shape(shape),
            filter=tf.cast(lowering.slice(filters), dtype),
            out_backprop=tf.cast(with_one_batch(lowering.slice(dy)), dtype),
            **windows.options,
        )
        dx = windows.gradient(tf.cast(dx, output.dtype), shape)
        dx = tf.reshape(dx, sizes)
        lowering.set_partial_sum(output, dx, [filters.shape.dims[-1]])


class ConvolutionFiltersGradOperation(GradientOperation):
    """Inputs: x and dy. Output: the gradient w.r.t. the filters.

    If the output's shape begins with batch dimensions, each image has its own gradient.
    """

    def slice_flops(self, layout: Layout) -> float:
        return _slice_flops(layout, self.inputs[1], self.outputs[0])

    def lower(self, lowering: Lowering) -> None:
        x, dy = self.inputs
        (output,) = self.outputs
        mesh_impl = lowering.mesh_impl(self)
        windows = _KernelWindows(mesh_impl, *self.forward.windows)
        dtype = _gradient_dtype(mesh_impl, x)
        visible = windows.seen(lowering.slice(x))
        *rows, height, width, channels, filters = mesh_impl.slice_shape(output.shape)

        def of_images(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return tf.raw_ops.Conv2DBackpropFilter(
                input=inputs[0],
                filter_sizes=[height, width, channels, filters],
                out_backprop=inputs[1],
                **windows.options,
            )

        images = tf.cast(visible, dtype), tf.cast(with_one_batch(lowering.slice(dy)), dtype)
        if rows:  # One call for all images would sum their gradients.
            images = tuple(each[:, None] for each in images)
            d_filters = tf.map_fn(of_images, images, fn_output_signature=dtype)
        else:
            d_filters = of_images(images)
        d_filters = tf.cast(d_filters, output.dtype)
        lowering.set_partial_sum(output, d_filters, x.shape.dims[len(rows) : -1])


def _gradient_dtype(mesh_impl: SpmdMeshImpl, x: upstream.Tensor) -> tf.DType:
    """Returns the dtype of gradients: wide on CPUs, whose 16-bit kernels are slow and imprecise."""
    return wide_dtype(x) if mesh_impl.target.on_cpu else x.dtype


class _KernelWindows(Windows):
    """The windows of TensorFlow's kernels, and the elements of a slice that they read.

    If windows have size 1, they read only one row or column per stride. `seen` then removes the
    rows or columns that no window reads. This is faster than letting the kernels skip them. Also,
    oneDNN's gradient of strided 1x1 convolutions has crashed programs with several CPU devices.

    Attributes:
      options: the attributes of all three kernels.
    """

    def __init__(self, mesh_impl: SpmdMeshImpl, height: Window, width: Window) -> None:
        super().__init__(mesh_impl, height, width)
        # The strides, along height and width, at which `seen` keeps rows and columns.
        self._steps = [each.stride if each.size == 1 else 1 for each in (height, width)]
        strides = height.stride // self._steps[0], width.stride // self._steps[1]
        self.options = {"strides": [1, *strides, 1], "padding": self.padding}

    def seen(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the elements [batch, height, width, channels] that windows read, with the halo.

        The tensor is reshaped to blocks of the stride's size, and the first element of each block
        is kept. TensorFlow's strided slices take five times as long.
        """
        x, (rows, columns) = self.with_halo(with_one_batch(x)), self._steps
        if rows == columns == 1:
            return x
        batch, height, width, channels = self.seen_shape(x.shape.as_list())
        x = _padded(x, 0, height * rows - x.shape[1], width * columns - x.shape[2], 0)
        blocks = tf.reshape(x, [batch * height, rows, width, columns * channels])
        return tf.reshape(blocks[:, 0, :, :channels], [batch, height, width, channels])

    def seen_shape(self, shape: list[int]) -> list[int]:
        """Returns the shape of `seen(x)` from the shape of x with the halo."""
        batch, height, width, channels = shape
        return [batch, -(-height // self._steps[0]), -(-width // self._steps[1]), channels]

    def gradient(self, dx: tf.Tensor, shape: list[int]) -> tf.Tensor:
        """Converts the gradient w.r.t. `seen(x)` to the gradient w.r.t. x.

        `shape` is the shape of x with the halo.
        """
        rows, columns = self._steps
        if rows == columns == 1:
            return self.without_halo(dx)
        batch, height, width, channels = dx.shape
        blocks = tf.reshape(dx, [batch * height, 1, width, channels])
        blocks = _padded(blocks, 0, rows - 1, 0, (columns - 1) * channels)
        dx = tf.reshape(blocks, [batch, height * rows, width * columns, channels])
        if dx.shape.as_list() != shape:
            dx = dx[:, : shape[1], : shape[2]]
        return self.without_halo(dx)


def _padded(x: tf.Tensor, *after: int) -> tf.Tensor:
    """Appends `after[i]` zeros to dimension i of a tensor."""
    return tf.pad(x, [[0, number] for number in after]) if any(after) else x


def _slice_flops(layout: Layout, y: upstream.Tensor, filters: upstream.Tensor) -> float:
    """Returns a processor's FLOPs: for each element of the result, two per weight of its filter."""
    *window, _ = layout.slice_size(filters.shape)
    return 2.0 * math.prod(layout.slice_size(y.shape)) * math.prod(window)
