"""Writing at a place of a tensor, each row at its own: how a decoding step adds to a cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.ops.gather import checked_gather

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def write_at(
    x: mtf.Tensor, update: mtf.Tensor, positions: mtf.Tensor, dim: mtf.Dimension
) -> mtf.Tensor:
    """`x`, in which `update` stands at `positions` along `dim`.

    It is carried out in place where nothing else needs `x`: a step then costs what it writes and
    not what the cache is long.

    Args:
      x: [batch..., ..., dim, ...]; `dim` may be split.
      update: of the shape of `x` without `dim`, and of its dtype.
      positions: integers in [0, dim.size), of some of the dimensions that come before `dim`.
      dim: a dimension of `x`.

    Returns:
      a tensor like `x`.

    Raises:
      ValueError: the shapes or dtypes do not fit.
      tf.errors.InvalidArgumentError: when the program runs on a CPU, a position is out of range.
        (Elsewhere nothing is written then.)
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
    return WriteAtOperation(x, update, positions, dim).outputs[0]


class WriteAtOperation(mtf.Operation):
    """Inputs x [leading..., dim, rest...], update [leading..., rest...] and positions."""

    def __init__(
        self, x: mtf.Tensor, update: mtf.Tensor, positions: mtf.Tensor, dim: mtf.Dimension
    ) -> None:
        super().__init__([x, update, positions], name="write_at")
        self._dim = dim
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        _, update, positions = self.inputs
        dy = grad_ys[0]
        by_x = write_at(dy, mtf.zeros_like(update), positions, self._dim)
        return [by_x, checked_gather(dy, positions, self._dim, update.shape), None]

    def lower(self, lowering: Lowering) -> None:
        x, update, positions = self.inputs
        shape, place = x.shape, x.shape.dims.index(self._dim)
        mesh_impl = lowering.mesh_impl(self)
        sizes = mesh_impl.slice_shape(shape)
        leading = mtf.Shape(shape.dims[:place])
        # A step of decoding writes keys and values of every layer at the same places.
        rows = lowering.shared(
            ("write_at", positions, leading.to_string, self._dim),
            lambda: self._rows(lowering, positions, leading),
        )
        table = tf.reshape(lowering.slice(x), [math.prod(sizes[: place + 1]), -1])
        new = tf.reshape(lowering.slice(update), [math.prod(sizes[:place]), -1])
        if rows.are_ours is not None:
            new = tf.where(rows.are_ours[:, None], new, tf.gather(table, rows.numbers))
        if mesh_impl.scatters_copy:
            written = _written(table, rows, new)
        else:
            written = tf.tensor_scatter_nd_update(table, rows.numbers[:, None], new)
        lowering.set_slice(self.outputs[0], tf.reshape(written, sizes))

    def _rows(self, lowering: Lowering, positions: mtf.Tensor, leading: mtf.Shape) -> _Rows:
        """Finds the rows; those of places out of range are -1, or refused when the program runs."""
        mesh_impl = lowering.mesh_impl(self)
        sizes = mesh_impl.slice_shape(leading)
        count, (length,) = math.prod(sizes), mesh_impl.slice_shape(mtf.Shape([self._dim]))
        given = tf.cast(lowering.slice(positions), tf.int32)
        spread = mtf.ops._expand_dims(given, positions.shape, leading)
        at = tf.reshape(tf.broadcast_to(spread, sizes), [count])
        are_valid = tf.logical_and(at >= 0, at < self._dim.size)
        are_ours = None
        if mesh_impl.tensor_dimension_to_mesh_axis(self._dim) is not None:
            at -= mesh_impl.slice_begin_tensors(mtf.Shape([self._dim]))[0]
            are_ours = tf.logical_and(at >= 0, at < length)
            at = tf.clip_by_value(at, 0, length - 1)
        numbers = tf.range(count) * length + at
        if mesh_impl.scatters_copy:
            with tf.control_dependencies([self._refuse_out_of_range(are_valid, given)]):
                numbers = tf.identity(numbers)
        else:
            numbers = tf.where(are_valid, numbers, -1)
        return _Rows(numbers, numbers[:1], numbers[:1] + 1, are_ours)

    def _refuse_out_of_range(self, is_valid: tf.Tensor, positions: tf.Tensor) -> tf.Operation:
        """Fails, when the program runs, if a position is not one of the dimension's."""
        message = f"write_at along {self._dim}: positions must be below its size and not negative:"
        data = [message, positions]
        return tf.raw_ops.Assert(condition=tf.reduce_all(is_valid), data=data, summarize=9)


class _Rows(NamedTuple):
    """Which rows of a flat table [leading... * dim, rest] are written.

    Attributes:
      numbers: int32 [leading...].
      first: [1], the first of them.
      after_first: [1], the number after it.
      are_ours: where `dim` is split, booleans [leading...]: whether the place is this processor's.
        Where it is not, what stands in the row must stay.
    """

    numbers: tf.Tensor
    first: tf.Tensor
    after_first: tf.Tensor
    are_ours: tf.Tensor | None


def _written(table: tf.Tensor, rows: _Rows, new: tf.Tensor) -> tf.Tensor:
    """The table with some of its rows replaced; rows out of range are not noticed.

    The operation that writes the first row copies the table if anything else needs it. What it
    gives is then ours alone, so that the one which writes the others, and never copies, may.
    """
    own = tf.raw_ops.TensorStridedSliceUpdate(
        input=table, begin=rows.first, end=rows.after_first, strides=[1], value=new[:1]
    )
    return tf.raw_ops.InplaceUpdate(x=own, i=rows.numbers, v=new)
