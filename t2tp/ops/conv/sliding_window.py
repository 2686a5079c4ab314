"""Sliding windows over height and width. A layout may split both.

At the ends of a processor's slice, a sliding window reads elements of the neighbours' slices: the
halo. Each processor therefore sends border elements to its neighbours, with one collective shift
per direction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.hparam_limits import Limits
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.mesh.layout import Layout, LayoutError


class Halo:
    """The elements that a window reads before the beginning and after the end of a slice.

    Elements beyond the ends of the global tensor are zero.

    Attributes:
      mesh_axis: the axis that splits the dimension, or None.
      before, after: numbers of elements that windows read before and after the slice.
    """

    def __init__(
        self,
        mesh_impl: SpmdMeshImpl,
        dim: upstream.Dimension,
        tensor_axis: int,
        before: int,
        after: int,
    ) -> None:
        """Prepares the exchange along `dim`, which is the dimension `tensor_axis` of slices."""
        self.mesh_axis = mesh_impl.tensor_dimension_to_mesh_axis(dim)
        self._collectives = mesh_impl.collectives
        self.tensor_axis = tensor_axis
        self.before, self.after = before, after
        places = range(mesh_impl.layout.num_slices(dim.name))
        self._from_before = [None, *places[:-1]]
        self._from_after = [*places[1:], None]

    def exchange(self, x: tf.Tensor) -> tf.Tensor:
        """Adds the halo to a slice: [..., n, ...] -> [..., before + n + after, ...]."""
        if self.mesh_axis is None:
            return self._padded(x, self.before, self.after) if self.before or self.after else x
        length, parts = x.shape[self.tensor_axis], [x]
        if self.before:
            end = self._part(x, length - self.before, self.before)
            parts.insert(0, self._collectives.permute(end, self.mesh_axis, self._from_before))
        if self.after:
            begin = self._part(x, 0, self.after)
            parts.append(self._collectives.permute(begin, self.mesh_axis, self._from_after))
        return tf.concat(parts, self.tensor_axis)

    def exchange_gradient(self, dy: tf.Tensor) -> tf.Tensor:
        """Sends the gradients of halos back: gradient w.r.t. `exchange(x)` -> gradient w.r.t. x."""
        length = dy.shape[self.tensor_axis] - self.before - self.after
        dx = self._part(dy, self.before, length)
        if self.mesh_axis is None:
            return dx
        if self.before:
            to_before = self._part(dy, 0, self.before)
            end = self._collectives.permute(to_before, self.mesh_axis, self._from_after)
            dx += self._padded(end, length - self.before, 0)
        if self.after:
            to_after = self._part(dy, self.before + length, self.after)
            begin = self._collectives.permute(to_after, self.mesh_axis, self._from_before)
            dx += self._padded(begin, 0, length - self.after)
        return dx

    def _part(self, x: tf.Tensor, begin: int, size: int) -> tf.Tensor:
        index: list[slice] = [slice(None)] * x.shape.rank
        index[self.tensor_axis] = slice(begin, begin + size)
        return x[tuple(index)]

    def _padded(self, x: tf.Tensor, before: int, after: int) -> tf.Tensor:
        padding = [[0, 0]] * x.shape.rank
        padding[self.tensor_axis] = [before, after]
        return tf.pad(x, padding)


class Halos:
    """The halos of a processor's slice along several dimensions."""

    def __init__(self, halos: Sequence[Halo]) -> None:
        """Stores the halos, in the order of their exchange. Later halos include the corners."""
        self._halos = halos

    def with_halo(self, x: tf.Tensor) -> tf.Tensor:
        """Extends a slice by the neighbours' elements (with corners) that its windows read."""
        for halo in self._halos:
            x = halo.exchange(x)
        return x

    def without_halo(self, dx: tf.Tensor) -> tf.Tensor:
        """Converts the gradient w.r.t. `with_halo(x)` to the gradient w.r.t. x."""
        for halo in reversed(self._halos):
            dx = halo.exchange_gradient(dx)
        return dx


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


class Windows(Halos):
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
        halos = [
            Halo(mesh_impl, window.dim, tensor_axis, *window.padding)
            for tensor_axis, window in ((1, height), (2, width))
        ]
        super().__init__(halos if self.padding == "VALID" else [])

    def shape_with_halo(self, shape: list[int]) -> list[int]:
        """Returns the shape of `with_halo(slice)` for [batch..., height, width, channels]."""
        *batch, height, width, channels = shape
        sizes = [math.prod(batch), height, width, channels]
        for halo in self._halos:
            sizes[halo.tensor_axis] += halo.before + halo.after
        return sizes


def check_window(
    layout: Layout, what: str, dim: upstream.Dimension, before: int, after: int, stride: int
) -> None:
    """Checks that a layout's slices along `dim` are long enough for a sliding window.

    Windows read `before` and `after` elements outside a slice. `what` is the operation, as the
    subject of an error message.

    Raises:
      LayoutError: a slice is shorter than its neighbours' halos, or the stride does not divide it.
    """
    axis = layout.axis_of(dim.name)
    if axis is None or axis.size == 1 or dim.size % axis.size:
        return  # The check of each tensor reports a dimension that its axis does not divide.
    needed = max(before, after)
    works = [
        n
        for n in range(1, dim.size + 1)
        if n == 1
        or (dim.size % n == 0 and (dim.size // n) % stride == 0 and dim.size // n >= needed)
    ]
    if axis.size in works:
        return
    length = dim.size // axis.size
    reason = (
        f"needs {needed} from the neighbouring slices" if length < needed else f"goes by {stride}"
    )
    raise LayoutError(
        f"{what} along {dim.name!r} {reason}, and mesh axis {axis.name!r} of size {axis.size}"
        f" splits its {dim.size} into slices of {length}. Sizes of the axis that would work:"
        f" {', '.join(map(str, works)) or 'none'}. Or drop the rule '{dim.name}:{axis.name}', or"
        " rename the dimension before this operation."
    )


def check_windows(layout: Layout, what: str, windows: tuple[Window, Window]) -> None:
    """Checks that a layout's slices suit the windows; see `check_window`."""
    for window in windows:
        check_window(layout, what, window.dim, *window.padding, window.stride)


def with_one_batch(x: tf.Tensor) -> tf.Tensor:
    """Reshapes [batch..., height, width, channels] -> [batch, height, width, channels]."""
    return tf.reshape(x, [-1, *x.shape[-3:]])
