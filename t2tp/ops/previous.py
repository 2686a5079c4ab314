"""The previous element along a dimension that may be split over the mesh."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering, Order
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import Signature
from t2tp.lowering.slice_shapes import expanded


def previous(
    x: upstream.Tensor, dim: upstream.Dimension, segments: upstream.Tensor | None = None
) -> upstream.Tensor:
    """Returns, for each index of `dim`, the element of `x` before it; zeros if there is none.

    Processors exchange only the ends of their slices, also in head-tail order, in which `mtf.shift`
    would exchange half of each slice before and after.

    Args:
      x: [..., dim, ...].
      dim: the dimension.
      segments: integers; `dim` and other dimensions of `x`. Elements before the first of a segment
        do not count.

    Returns:
      a tensor like `x`.
    """
    return NeighborOperation([x] if segments is None else [x, segments], dim, 1).outputs[0]


class NeighborOperation(Operation):
    """Inputs: x, and segments or nothing. Output: like x.

    With `offset` 1 an output element is the previous input element, with -1 the next one.
    """

    chooses_orders = True

    def __init__(
        self, inputs: Sequence[upstream.Tensor], dim: upstream.Dimension, offset: int
    ) -> None:
        super().__init__(list(inputs), name="neighbor")
        self._dim, self._offset = dim, offset
        self.signature = Signature(combined=[dim], exact=[dim], any_slice=True, cost="elementwise")
        self.set_outputs(inputs[0])

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        inputs = [grad_ys[0], *self.inputs[1:]]
        (dx,) = NeighborOperation(inputs, self._dim, -self._offset).outputs
        return [dx, None][: len(inputs)]

    def lower(self, lowering: Lowering) -> None:
        x, *segments = self.inputs
        order = lowering.orders.of(x)
        y = self._shifted(lowering, order, x)
        for of_x in segments:
            key = ("same segment", of_x, self._dim, self._offset, order, *x.shape.dims)
            same = lowering.shared(key, functools.partial(self._is_same, lowering, order, of_x))
            y = tf.where(same, y, tf.zeros([], y.dtype))
        lowering.set_slice(self.outputs[0], y)
        lowering.orders.set(self.outputs[0], order)

    def _is_same(self, lowering: Lowering, order: Order, segments: upstream.Tensor) -> tf.Tensor:
        """Whether elements of x are in the segment of their neighbors; broadcasts with x."""
        own = lowering.slice_in_order(segments, order)
        same = tf.equal(own, self._shifted(lowering, order, segments))
        return expanded(same, segments.shape, self.inputs[0].shape)

    def _shifted(self, lowering: Lowering, order: Order, tensor: upstream.Tensor) -> tf.Tensor:
        x, along = lowering.slice_in_order(tensor, order), tensor.shape.dims.index(self._dim)
        axis = lowering.mesh_impl(self).tensor_dimension_to_mesh_axis(self._dim)
        if axis is None:
            return self._shifted_whole(x, along)
        # Each part of a slice in head-tail order has its own neighbors.
        parts = tf.split(x, 2, along) if axis in order else [x]
        inner, ends = slice(None, -1), slice(-1, None)
        if self._offset < 0:
            inner, ends = slice(1, None), slice(None, 1)
        before = (slice(None),) * along
        arrived = self._exchanged(lowering, axis, [part[(*before, ends)] for part in parts])
        joined: list[tf.Tensor] = []
        for part, end in zip(parts, arrived, strict=True):
            joined += [end, part[(*before, inner)]][:: self._offset]
        return tf.concat(joined, along)

    def _shifted_whole(self, x: tf.Tensor, along: int) -> tf.Tensor:
        """Shifts a slice with the whole dimension, in few nodes: layers shift keys and values."""
        rank = x.shape.rank
        begin, size, padding = [0] * rank, [-1] * rank, [[0, 0]] * rank
        begin[along] = int(self._offset < 0)
        size[along] = self._dim.size - 1
        padding[along] = [0, 1] if self._offset < 0 else [1, 0]
        return tf.pad(tf.slice(x, begin, size), padding)

    def _exchanged(self, lowering: Lowering, axis: int, ends: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sends the ends of parts to the processors that have the neighboring parts."""
        mesh_impl = lowering.mesh_impl(self)
        places = range(mesh_impl.shape[axis].size)
        if len(ends) == 1:
            sources = [[None, *places[:-1]], [*places[1:], None]]
        else:  # The neighbors of early parts are late parts, in descending order.
            sources = [[None, *reversed(places[1:])], [*reversed(places)]]
        return [
            mesh_impl.collectives.permute(end, axis, source)
            for end, source in zip(reversed(ends), sources[:: self._offset], strict=False)
        ]
