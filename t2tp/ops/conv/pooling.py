"""Pooling over height and width. A layout may split both."""

from typing import Any, Literal

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import Operation
from t2tp.mesh.layout import Layout
from t2tp.ops.cast import wide_dtype
from t2tp.ops.conv.sliding_window import Window, Windows, check_windows, with_one_batch

Kind = Literal["max", "mean"]


def pool(x: upstream.Tensor, kind: Kind, size: int, stride: int) -> upstream.Tensor:
    """Computes the max or the mean of each window.

    Like TensorFlow's pooling with padding "SAME": positions beyond the image's edge are ignored.
    Any dimension may be split.

    Args:
      x: [batch..., height, width, channels], floats.
      kind: "max" or "mean".
      size: height and width of a window.
      stride: distance between windows, in both directions.

    Returns:
      [batch..., ceil(height / stride), ceil(width / stride), channels].

    Raises:
      ValueError: x has fewer than three dimensions, or another argument is out of range.
      LayoutError: (when the program is built) slices are too short for the windows, or the stride
        does not divide them.
    """
    if x.shape.ndims < 3:
        raise ValueError(f"pool: x {x.shape} must be [batch..., height, width, channels].")
    if kind not in ("max", "mean"):
        raise ValueError(f"pool: kind must be 'max' or 'mean', not {kind!r}.")
    if size < 1 or stride < 1:
        raise ValueError(f"pool: size {size} and stride {stride} must be at least 1.")
    height, width = x.shape.dims[-3:-1]
    windows = (Window(height, size, stride), Window(width, size, stride))
    return PoolOperation(x, kind, windows).outputs[0]


class PoolOperation(Operation):
    """Computes pooling.

    Input: x [batch..., height, width, channels]. Output: likewise with fewer rows and columns.
    """

    def __init__(self, x: upstream.Tensor, kind: Kind, windows: tuple[Window, Window]) -> None:
        super().__init__([x], name=f"pool_{kind}")
        self._kind = kind
        self._windows = windows
        *batch, _, _, channels = x.shape.dims
        shape = upstream.Shape([*batch, *(window.result for window in windows), channels])
        self._outputs = [upstream.Tensor(self, shape, x.dtype)]

    def check_layout(self, layout: Layout) -> None:
        """Checks that a layout's slices suit the windows."""
        check_windows(layout, f"Pooling {self.name!r}", self._windows)

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        return PoolGradOperation(self, self._kind, self._windows, grad_ys[0]).outputs

    def lower(self, lowering: Lowering) -> None:
        (output,) = self.outputs
        pooling = _Pooling(lowering.mesh_impl(self), self._kind, self._windows)
        y = pooling.forward(pooling.with_halo(lowering.slice(self.inputs[0])))
        lowering.set_slice(
            output, tf.reshape(y, lowering.mesh_impl(self).slice_shape(output.shape))
        )


class PoolGradOperation(Operation):
    """Inputs: x, the pooled y and dy. Output: dx."""

    def __init__(
        self,
        forward: PoolOperation,
        kind: Kind,
        windows: tuple[Window, Window],
        dy: upstream.Tensor,
    ) -> None:
        super().__init__([*forward.inputs, *forward.outputs, dy], name=f"pool_{kind}_grad")
        self._kind = kind
        self._windows = windows
        self._outputs = [upstream.Tensor(self, self.inputs[0].shape, dy.dtype)]

    def lower(self, lowering: Lowering) -> None:
        x, y, dy = (lowering.slice(tensor) for tensor in self.inputs)
        pooling = _Pooling(lowering.mesh_impl(self), self._kind, self._windows)
        dx = pooling.backward(pooling.with_halo(x), with_one_batch(y), with_one_batch(dy))
        lowering.set_slice(self.outputs[0], tf.reshape(dx, x.shape))


class _Pooling:
    """Pooling of a processor's slice."""

    def __init__(self, mesh_impl: SpmdMeshImpl, kind: Kind, sliding: tuple[Window, Window]) -> None:
        self._mesh_impl = mesh_impl
        self._kind = kind
        self._sliding = sliding
        self._windows = Windows(mesh_impl, *sliding, pads_all=True)

    def with_halo(self, x: tf.Tensor) -> tf.Tensor:
        """Reshapes x to [batch, height, width, channels] and adds the halo of the windows.

        Outside the image, the halo is the lowest number or 0.
        """
        x = self._windows.with_halo(with_one_batch(x))
        if self._kind == "mean":
            return x
        is_inside = self._inside(x.shape[1:3].as_list())
        return tf.where(is_inside[None, :, :, None], x, x.dtype.min)

    def forward(self, x: tf.Tensor) -> tf.Tensor:
        """Pools the output of `with_halo`: [batch, height, width, channels]."""
        if self._kind == "max":
            return tf.raw_ops.MaxPool(input=x, **self._options())
        wide = tf.cast(x, wide_dtype(x))
        mean = tf.raw_ops.AvgPool(value=wide, **self._options()) * self._correction(wide)
        return tf.cast(mean, x.dtype)

    def backward(self, x: tf.Tensor, y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        """Returns the gradient w.r.t. x, a slice without halo."""
        if self._kind == "max":
            dx = tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=y, grad=dy, **self._options())
        else:
            wide = tf.cast(x, wide_dtype(x))
            dx = tf.raw_ops.AvgPoolGrad(
                orig_input_shape=x.shape.as_list(),
                grad=tf.cast(dy, wide.dtype) * self._correction(wide),
                **self._options(),
            )
            dx = tf.cast(dx, x.dtype)
        return self._windows.without_halo(dx)

    def _correction(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the factor from means over all positions of a window to means inside the image.

        Returns:
          [1, height, width, 1].
        """
        is_inside = tf.cast(self._inside(x.shape[1:3].as_list()), x.dtype)
        return 1.0 / tf.raw_ops.AvgPool(value=is_inside[None, :, :, None], **self._options())

    def _inside(self, sizes: list[int]) -> tf.Tensor:
        """Whether positions of a slice with halo are in the image: booleans [height, width]."""
        is_inside = []
        for window, size in zip(self._sliding, sizes, strict=True):
            (begin,) = self._mesh_impl.slice_begin_tensors(upstream.Shape([window.dim]))
            position = begin - window.padding[0] + np.arange(size, dtype=np.int32)
            is_inside.append((position >= 0) & (position < window.dim.size))
        return tf.logical_and(is_inside[0][:, None], is_inside[1][None, :])

    def _options(self) -> dict[str, Any]:
        sizes = [1, *(window.size for window in self._sliding), 1]
        strides = [1, *(window.stride for window in self._sliding), 1]
        return {"ksize": sizes, "strides": strides, "padding": "VALID"}
