"""Sliding windows over height and width. A layout may split both."""

import math
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.hparam_limits import Limits
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.mesh.layout import Layout
from t2tp.ops.conv.halo import Halo, check_window


@dataclass(frozen=True)
class Window:
    """A sliding window along one dimension, as in TensorFlow's "SAME".

    The result has ceil(dim.size / stride) elements. Half of the zero padding goes to each end; an
    odd zero goes to the end of the dimension.
    """

    dim: upstream.Dimension
    size: int
    stride: int

    def __post_init__(self) -> None:
        """Raises ValueError for a size or a stride below 1."""
        Limits(min=1).check(f"a window along {self.dim}", [self.size, self.stride])

    @property
    def result(self) -> upstream.Dimension:
        """The dimension of the result, with the name of `dim`."""
        return upstream.Dimension(self.dim.name, -(-self.dim.size // self.stride))

    @property
    def padding(self) -> tuple[int, int]:
        """The numbers of zeros that windows read before the beginning and after the end."""
        covered = (self.result.size - 1) * self.stride + self.size
        missing = max(covered - self.dim.size, 0)
        return missing // 2, missing - missing // 2


class Windows:
    """The windows of a processor over [batch, height, width, channels].

    Attributes:
      padding: the kernel's padding: "VALID" if height or width is split, or with `pads_all`;
        otherwise "SAME". TensorFlow has fast CPU kernels only for these two paddings.
    """

    def __init__(
        self, mesh_impl: SpmdMeshImpl, height: Window, width: Window, pads_all: bool = False
    ) -> None:
        """Prepares a processor's windows; with `pads_all`, `with_halo` adds all padding itself."""
        space = upstream.Shape([height.dim, width.dim])
        is_split = any(axis is not None for axis in mesh_impl.tensor_layout(space))
        self.padding = "VALID" if is_split or pads_all else "SAME"
        self._halos = [
            Halo(mesh_impl, window.dim, tensor_axis, *window.padding)
            for tensor_axis, window in ((1, height), (2, width))
            if self.padding == "VALID"
        ]

    def with_halo(self, x: tf.Tensor) -> tf.Tensor:
        """Extends a slice by the neighbours' elements (with corners) that its windows read."""
        for halo in self._halos:
            x = halo.exchange(x)
        return x

    def shape_with_halo(self, shape: list[int]) -> list[int]:
        """Returns the shape of `with_halo(slice)` for [batch..., height, width, channels]."""
        *batch, height, width, channels = shape
        sizes = [math.prod(batch), height, width, channels]
        for halo in self._halos:
            sizes[halo.tensor_axis] += halo.before + halo.after
        return sizes

    def without_halo(self, dx: tf.Tensor) -> tf.Tensor:
        """Converts the gradient w.r.t. `with_halo(x)` to the gradient w.r.t. x."""
        for halo in reversed(self._halos):
            dx = halo.exchange_gradient(dx)
        return dx


def check_windows(layout: Layout, what: str, windows: tuple[Window, Window]) -> None:
    """Checks that a layout's slices suit the windows; see `check_window`."""
    for window in windows:
        check_window(layout, what, window.dim, *window.padding, window.stride)


def with_one_batch(x: tf.Tensor) -> tf.Tensor:
    """Reshapes [batch..., height, width, channels] -> [batch, height, width, channels]."""
    return tf.reshape(x, [-1, *x.shape[-3:]])
