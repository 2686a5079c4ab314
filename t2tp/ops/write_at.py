"""Writing at a place of a tensor, each row at its own: how a decoding step adds to a cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.ops.gather import gather

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
        return [by_x, gather(dy, positions, self._dim, update.shape), None]

    def lower(self, lowering: Lowering) -> None:
        x, update, positions = (lowering.slice(tensor) for tensor in self.inputs)
        shape, place = self.inputs[0].shape, self.inputs[0].shape.dims.index(self._dim)
        mesh_impl = lowering.mesh_impl(self)
        sizes = mesh_impl.slice_shape(shape)
        num_rows, length = math.prod(sizes[:place]), sizes[place]
        positions = tf.cast(positions, tf.int32)
        spread = mtf.ops._expand_dims(
            positions, self.inputs[2].shape, mtf.Shape(shape.dims[:place])
        )
        at = tf.reshape(tf.broadcast_to(spread, sizes[:place]), [num_rows])
        table = tf.reshape(x, [num_rows * length, -1])
        new = tf.reshape(update, [num_rows, -1])
        first_of_row = tf.range(num_rows) * length
        is_valid = tf.logical_and(at >= 0, at < self._dim.size)
        if mesh_impl.tensor_dimension_to_mesh_axis(self._dim) is not None:
            # Where the place is another processor's, what is there stays.
            at -= mesh_impl.slice_begin_tensors(mtf.Shape([self._dim]))[0]
            is_ours = tf.logical_and(at >= 0, at < length)
            at = tf.clip_by_value(at, 0, length - 1)
            new = tf.where(is_ours[:, None], new, tf.gather(table, first_of_row + at))
        rows = first_of_row + at
        if mesh_impl.scatters_copy:
            with tf.control_dependencies([self._refuse_out_of_range(is_valid, positions)]):
                written = _written(table, rows, new)
        else:
            rows = tf.where(is_valid, rows, -1)
            written = tf.tensor_scatter_nd_update(table, rows[:, None], new)
        lowering.set_slice(self.outputs[0], tf.reshape(written, sizes))

    def _refuse_out_of_range(self, is_valid: tf.Tensor, positions: tf.Tensor) -> tf.Operation:
        """Fails, when the program runs, if a position is not one of the dimension's."""
        message = f"write_at along {self._dim}: positions must be below its size and not negative:"
        data = [message, positions]
        return tf.raw_ops.Assert(condition=tf.reduce_all(is_valid), data=data, summarize=9)


def _written(table: tf.Tensor, rows: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """The table with some of its rows replaced; rows out of range are not noticed.

    The operation that writes the first row copies the table if anything else needs it. What it
    gives is then ours alone, so that the one which writes the others, and never copies, may.
    """
    first = rows[:1]
    own = tf.raw_ops.TensorStridedSliceUpdate(
        input=table, begin=first, end=first + 1, strides=[1], value=new[:1]
    )
    return tf.raw_ops.InplaceUpdate(x=own, i=rows, v=new)
