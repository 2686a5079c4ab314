"""Writes at one index of each row of a tensor, as a decode step does to extend a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import Backend
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.lowering.slice_shapes import expanded
from t2tp.ops.gather import gather
from t2tp.ops.take_microbatch import TakeMicrobatchOperation


def scatter_update(
    x: upstream.Tensor, update: upstream.Tensor, positions: upstream.Tensor, dim: upstream.Dimension
) -> upstream.Tensor:
    """Returns `x` with `update` at `positions` along `dim`.

    The update is made in place if nothing else needs `x`. The cost of a decode step then depends on
    the size of the update, not on the length of the cache.

    Args:
      x: [batch..., ..., dim, ...]; `dim` may be split.
      update: a tensor like `x`, without `dim`.
      positions: integers in [0, dim.size). Its dimensions are some of the dimensions before `dim`.
      dim: a dimension of `x`.

    Returns:
      a tensor like `x`.

    Raises:
      ValueError: the shapes or dtypes do not match.
      tf.errors.InvalidArgumentError: when the program runs on a CPU, a position is out of range.
        (On other devices nothing is written for that row.)
    """
    if dim not in x.shape.dims or update.shape != x.shape - dim or update.dtype != x.dtype:
        raise ValueError(
            f"write_at along {dim}: the update must be {x.dtype.name}, of the dimensions of x"
            f" {x.shape} without it, not {update.dtype.name} {update.shape}."
        )
    leading = x.shape.dims[: x.shape.dims.index(dim)]
    if not positions.dtype.is_integer or any(d not in leading for d in positions.shape.dims):
        raise ValueError(
            f"write_at along {dim}: positions must be integers whose dimensions are among"
            f" {leading}, which come before it, not {positions.dtype.name} {positions.shape}."
        )
    return ScatterUpdateOperation([x, update, positions], dim).outputs[0]


class ScatterUpdateOperation(Operation):
    """Inputs: x [leading..., dim, rest...], update [leading..., rest...] and positions."""

    signature = Signature(ordered=ALL, pads=True, cost="gather")

    def __init__(self, inputs: Sequence[upstream.Tensor], dim: upstream.Dimension) -> None:
        super().__init__(list(inputs), name="write_at")
        self._dim = dim
        self.set_outputs(inputs[0])

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        _, update, positions = self.inputs
        dy = grad_ys[0]
        by_x = scatter_update(dy, upstream.zeros_like(update), positions, self._dim)
        return [by_x, gather(dy, positions, self._dim, update.shape, is_checked=True), None]

    def lower(self, lowering: Lowering) -> None:
        x, update, positions = self.inputs
        shape, axis = x.shape, x.shape.dims.index(self._dim)
        mesh_impl = lowering.mesh_impl(self)
        sizes = mesh_impl.slice_shape(shape)
        leading = upstream.Shape(shape.dims[:axis])
        # A decode step writes the keys and values of every layer at the same positions, so all
        # these writes share one computation of the rows.
        rows = lowering.shared(
            ("write_at", positions, leading.to_string, self._dim),
            lambda: self._rows(lowering, positions, leading),
        )
        new = tf.reshape(lowering.slice(update), [math.prod(sizes[:axis]), -1])
        source = x.operation
        if isinstance(source, TakeMicrobatchOperation) and source.takes_leading_rows_of(
            lowering.updated_in_place
        ):
            # Writes to the whole batch's tensor, and takes the microbatch's slice of it again.
            whole, number = (lowering.slice(tensor) for tensor in source.inputs)
            begin = number * math.prod(sizes[: axis + 1])
            rows = NewRows(rows.numbers + begin, rows.are_ours)
            written = self._write(whole, rows, new, axis, mesh_impl.target)
            lowering.set_slice(source.inputs[0], written)
            source.lower(lowering)
            lowering.set_slice(self.outputs[0], lowering.slice(x))
        else:
            written = self._write(lowering.slice(x), rows, new, axis, mesh_impl.target)
            lowering.set_slice(self.outputs[0], written)

    @staticmethod
    def _write(
        x: tf.Tensor, rows: NewRows, new: tf.Tensor, axis: int, target: Backend
    ) -> tf.Tensor:
        """Returns `x` with rows along `axis` replaced."""
        table = tf.reshape(x, [math.prod(x.shape[: axis + 1]), -1])
        if rows.are_ours is not None:
            new = tf.where(rows.are_ours[:, None], new, tf.gather(table, rows.numbers))
        return tf.reshape(with_rows(table, rows, new, target), x.shape)

    def _rows(
        self, lowering: Lowering, positions: upstream.Tensor, leading: upstream.Shape
    ) -> NewRows:
        """Returns the rows to write.

        For a position out of range, the row is -1; on CPUs the program raises an error instead.
        """
        mesh_impl = lowering.mesh_impl(self)
        sizes = mesh_impl.slice_shape(leading)
        count, (length,) = math.prod(sizes), mesh_impl.slice_shape(upstream.Shape([self._dim]))
        given = tf.cast(lowering.slice(positions), tf.int32)
        spread = expanded(given, positions.shape, leading)
        at = tf.reshape(tf.broadcast_to(spread, sizes), [count])
        are_valid = tf.logical_and(at >= 0, at < self._dim.size)
        are_ours = None
        if mesh_impl.tensor_dimension_to_mesh_axis(self._dim) is not None:
            at -= mesh_impl.slice_begin_tensors(upstream.Shape([self._dim]))[0]
            are_ours = tf.logical_and(at >= 0, at < length)
            at = tf.clip_by_value(at, 0, length - 1)
        numbers = tf.range(count) * length + at
        if mesh_impl.target.scatters_copy:
            with tf.control_dependencies([self._check_in_range(are_valid, given)]):
                numbers = tf.identity(numbers)
        else:
            numbers = tf.where(are_valid, numbers, -1)
        return NewRows(numbers, are_ours)

    def _check_in_range(self, is_valid: tf.Tensor, positions: tf.Tensor) -> tf.Operation:
        """Raises an error, when the program runs, if a position is out of range."""
        message = f"write_at along {self._dim}: positions must be below its size and not negative:"
        data = [message, positions]
        return tf.raw_ops.Assert(condition=tf.reduce_all(is_valid), data=data, summarize=9)


class NewRows:
    """The rows to write in a table [rows, ...].

    Attributes:
      numbers: int32 [count], the indices of the rows.
      first: int32 [1], the first of `numbers`.
      are_ours: booleans [count], false for rows that must not change. None: all rows are written.
    """

    def __init__(self, numbers: tf.Tensor, are_ours: tf.Tensor | None = None) -> None:
        self.numbers, self.first, self.are_ours = numbers, numbers[:1], are_ours


def with_rows(table: tf.Tensor, rows: NewRows, new: tf.Tensor, target: Backend) -> tf.Tensor:
    """Returns a table with some rows replaced, in place if nothing else needs `table`.

    On CPUs, the rows must be in range; on other devices, rows out of range are ignored.

    On CPUs, `tensor_scatter_nd_update` would always copy the table. Instead, a first operation
    writes one element, and copies the table if anything else needs it. A second operation writes
    all of the rows and never copies, which is safe because nothing else reads the first operation's
    result.
    """
    if not target.scatters_copy:
        return tf.tensor_scatter_nd_update(table, rows.numbers[:, None], new)
    # One element of the first row is enough to cause the copy. Writing a whole row would take
    # longer.
    width = math.prod(new.shape[1:])
    updated = tf.raw_ops.TensorStridedSliceUpdate(
        input=tf.reshape(table, [-1]),
        begin=rows.first * width,
        end=rows.first * width + 1,
        strides=[1],
        value=tf.reshape(new, [-1])[:1],
    )
    updated = tf.reshape(updated, table.shape)
    return tf.raw_ops.InplaceUpdate(x=updated, i=rows.numbers, v=new)
