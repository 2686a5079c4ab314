"""Windows that slide over height and width, either of which may be split over the mesh."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.layout import Layout
from t2tp.mesh.spmd import SpmdMeshImpl
from t2tp.ops.halo import Halo, check_window


@dataclass(frozen=True)
class Window:
    """A window that slides along one dimension, as TensorFlow's "SAME" has it: the result has
    ceil(size / stride) elements, and zeros are added evenly at both ends, the odd one at the end.

    Attributes:
      dim: the dimension.
      size: of the window.
      stride: how far it goes at a time.
    """

    dim: mtf.Dimension
    size: int
    stride: int

    @property
    def result(self) -> mtf.Dimension:
        """The dimension of the result, of the same name."""
        return mtf.Dimension(self.dim.name, -(-self.dim.size // self.stride))

    @property
    def padding(self) -> tuple[int, int]:
        """What a window needs before the beginning and after the end."""
        covered = (self.result.size - 1) * self.stride + self.size
        missing = max(covered - self.dim.size, 0)
        return missing // 2, missing - missing // 2


class Windows:
    """The windows of a processor: over [batch, height, width, channels].

    Attributes:
      padding: what the kernel is to add, "SAME" (where neither height nor width is split) or
        "VALID". (TensorFlow has fast kernels for these on CPUs, and none for paddings in numbers.)
    """

    def __init__(
        self, mesh_impl: SpmdMeshImpl, height: Window, width: Window, pads_all: bool = False
    ) -> None:
        """Prepares a processor's windows; `pads_all`: leaves no padding to the kernel."""
        space = mtf.Shape([height.dim, width.dim])
        is_split = any(axis is not None for axis in mesh_impl.tensor_layout(space))
        self.padding = "VALID" if is_split or pads_all else "SAME"
        self._halos = [
            Halo(mesh_impl, window.dim, tensor_axis, *window.padding)
            for tensor_axis, window in ((1, height), (2, width))
            if self.padding == "VALID"
        ]

    def with_edges(self, x: tf.Tensor) -> tf.Tensor:
        """The slice, with what its windows see of the neighbours' slices; at corners too, because
        one dimension comes after the other."""
        for halo in self._halos:
            x = halo.add(x)
        return x

    def shape_with_edges(self, shape: list[int]) -> list[int]:
        """The shape of a slice [batch..., height, width, channels] -> that of what `with_edges`
        gives."""
        *batch, height, width, channels = shape
        sizes = [math.prod(batch), height, width, channels]
        for halo in self._halos:
            sizes[halo.tensor_axis] += halo.before + halo.after
        return sizes

    def without_edges(self, dx: tf.Tensor) -> tf.Tensor:
        """The gradient by what `with_edges` gave -> the gradient by the slice."""
        for halo in reversed(self._halos):
            dx = halo.give_back(dx)
        return dx


def check_windows(layout: Layout, what: str, windows: tuple[Window, Window]) -> None:
    """Refuses a layout in which windows cannot slide; see `check_window`."""
    for window in windows:
        check_window(layout, what, window.dim, *window.padding, window.stride)


def with_one_batch(x: tf.Tensor) -> tf.Tensor:
    """[batch..., height, width, channels] -> [batch, height, width, channels]."""
    return tf.reshape(x, [-1, *x.shape[-3:]])
