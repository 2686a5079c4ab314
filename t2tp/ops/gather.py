"""Gather: rows of a table by their numbers, where the table may be split over the mesh.

mesh-tensorflow's gather multiplies by a one-hot matrix, which costs as much as the table is long,
and gives zeros for a number out of range. This one costs what the rows cost, and refuses such
numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def gather(
    weights: mtf.Tensor,
    indices: mtf.Tensor | int,
    dim: mtf.Dimension,
    output_shape: mtf.Shape | None = None,
) -> mtf.Tensor:
    """`weights` at `indices` along `dim`.

    Where `dim` is split, each processor looks up the rows that it holds, and a sum over the mesh
    axis brings them together.

    Args:
      weights: [..., dim, ...], any dtype.
      indices: integers in [0, dim.size). A dimension that it shares with `weights` is a batch
        dimension.
      dim: the dimension of `weights` to look up in.
      output_shape: order of the result's dimensions (new ones are broadcast); by default those of
        `indices`, then the other ones of `weights`.

    Returns:
      a tensor of the dtype of `weights`.

    Raises:
      ValueError: `weights` has no `dim`, `indices` are not integers or have it too, or
        `output_shape` lacks a dimension.
      LayoutError: of the program, if one mesh axis splits `dim` and a dimension of the indices.
      tf.errors.InvalidArgumentError: when the program runs, an index is out of range. (Compiled by
        XLA, which cannot raise, the row is NaN, for integers the smallest number.)
    """
    if not isinstance(indices, mtf.Tensor):
        indices = mtf.constant(weights.mesh, indices, dtype=tf.int32)
    dim = mtf.convert_to_dimension(dim)
    if dim not in weights.shape.dims:
        raise ValueError(f"gather: {weights.name!r} {weights.shape} has no dimension {dim}.")
    if not indices.dtype.is_integer or dim in indices.shape.dims:
        raise ValueError(
            f"gather along {dim}: indices must be integers without that dimension, not"
            f" {indices.dtype.name} {indices.shape}."
        )
    if weights.dtype == tf.bool:
        weights_as_int = mtf.cast(weights, tf.int32)
        return mtf.cast(gather(weights_as_int, indices, dim, output_shape), tf.bool)
    result = GatherOperation(weights, indices, dim).outputs[0]
    output_shape = mtf.convert_to_shape(output_shape)
    if output_shape is None or output_shape == result.shape:
        return result
    return mtf.einsum([result], output_shape=output_shape, reduced_dims=[])


class GatherOperation(mtf.Operation):
    """Inputs weights [..., dim, ...] and indices [...]; output [indices..., rest of weights...]."""

    def __init__(self, weights: mtf.Tensor, indices: mtf.Tensor, dim: mtf.Dimension) -> None:
        super().__init__([weights, indices], name="gather")
        self._dim = dim
        rest = [d for d in weights.shape.dims if d != dim and d not in indices.shape.dims]
        self._outputs = [mtf.Tensor(self, indices.shape + rest, weights.dtype)]
        self.joint_shape = _joint_shape(indices, dim)

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        weights, indices = self.inputs
        return [GatherGradOperation(indices, grad_ys[0], weights.shape, self._dim).outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        weights, indices = self.inputs
        rows = _Rows(lowering, weights.shape, indices, self._dim)
        table = rows.to_table(lowering.slice(weights))
        with tf.control_dependencies([rows.refuse_out_of_range(weights)]):
            picked = tf.gather(table, tf.where(rows.is_here, rows.number, 0))
        # The sum over the mesh axis needs zeros where the row is another processor's; adding
        # anything to a row that nobody has must not give a number that looks right.
        absent = tf.where(rows.is_valid, tf.zeros([], table.dtype), _not_a_number(table.dtype))
        picked = tf.where(rows.is_here[:, None], picked, absent[:, None])
        value = rows.from_picked(picked)
        lowering.set_partial_sum(self.outputs[0], value, [self._dim])


class GatherGradOperation(mtf.Operation):
    """Inputs indices [...] and the gradient by the result; output the gradient by the weights."""

    def __init__(
        self,
        indices: mtf.Tensor,
        dy: mtf.Tensor,
        weights_shape: mtf.Shape,
        dim: mtf.Dimension,
    ) -> None:
        super().__init__([indices, dy], name="gather_grad")
        self._dim = dim
        self._outputs = [mtf.Tensor(self, weights_shape, dy.dtype)]
        self.joint_shape = _joint_shape(indices, dim)

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        return [None, gather(grad_ys[0], self.inputs[0], self._dim, self.inputs[1].shape)]

    def lower(self, lowering: Lowering) -> None:
        indices, dy = self.inputs
        weights_shape = self.outputs[0].shape
        rows = _Rows(lowering, weights_shape, indices, self._dim)
        # A negative segment is dropped.
        table = tf.math.unsorted_segment_sum(
            rows.to_picked(lowering.slice(dy)),
            tf.where(rows.is_here, rows.number, -1),
            rows.table_length,
        )
        summed = [d for d in indices.shape.dims if d not in weights_shape.dims]
        lowering.set_partial_sum(self.outputs[0], rows.from_table(table), summed)


def _joint_shape(indices: mtf.Tensor, dim: mtf.Dimension) -> mtf.Shape:
    """Dimensions that a layout must not split over one axis, though no tensor has them all: the sum
    over that axis would add up the rows of different indices."""
    return indices.shape + dim


class _Rows:
    """Which rows of a flat table [batch * dim, rest] this processor's slice of the indices means.

    The table is the processor's slice of the weights, with the dimensions shared with the indices
    first (batch), then `dim`, then the rest; all indices are in one list.

    Attributes:
      number: the row of the table, for each index; meaningless where `is_here` is false.
      is_here: whether this processor holds it.
      is_valid: whether any processor does.
      table_length: number of rows of the table.
    """

    def __init__(
        self,
        lowering: Lowering,
        weights_shape: mtf.Shape,
        indices: mtf.Tensor,
        dim: mtf.Dimension,
    ) -> None:
        mesh_impl = lowering.mesh_impl(indices)
        batch = [d for d in indices.shape.dims if d in weights_shape.dims]
        rest = [d for d in weights_shape.dims if d != dim and d not in batch]
        table_dims = [*batch, dim, *rest]
        self._order = [weights_shape.dims.index(d) for d in table_dims]
        self._sizes = mesh_impl.slice_shape(mtf.Shape(table_dims))
        self._indices_sizes = mesh_impl.slice_shape(indices.shape)
        self._rest_sizes = self._sizes[len(batch) + 1 :]
        self.table_length = math.prod(self._sizes[: len(batch) + 1])

        (dim_slice,) = mesh_impl.slice_shape(mtf.Shape([dim]))
        (begin,) = mesh_impl.slice_begin_tensors(mtf.Shape([dim]))
        ids = lowering.slice(indices)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int64)
        self._ids = ids
        self._dim = dim
        local = ids - tf.cast(begin, ids.dtype)
        self.is_here = tf.reshape(tf.logical_and(local >= 0, local < dim_slice), [-1])
        self.is_valid = tf.reshape(tf.logical_and(ids >= 0, ids < dim.size), [-1])
        number = local
        stride = dim_slice
        for d in reversed(batch):
            axis = indices.shape.dims.index(d)
            size = self._indices_sizes[axis]
            along = [size if a == axis else 1 for a in range(indices.shape.ndims)]
            number += tf.reshape(tf.range(size, dtype=ids.dtype) * stride, along)
            stride *= size
        self.number = tf.reshape(number, [-1])

    def to_table(self, weights: tf.Tensor) -> tf.Tensor:
        """Slice of the weights -> table."""
        ordered = tf.transpose(weights, self._order) if self._is_reordered else weights
        return tf.reshape(ordered, [self.table_length, -1])

    def from_table(self, table: tf.Tensor) -> tf.Tensor:
        """Table -> slice of the weights."""
        ordered = tf.reshape(table, self._sizes)
        if not self._is_reordered:
            return ordered
        return tf.transpose(ordered, [self._order.index(a) for a in range(len(self._order))])

    def from_picked(self, picked: tf.Tensor) -> tf.Tensor:
        """Rows in a list -> [indices..., rest...]."""
        return tf.reshape(picked, [*self._indices_sizes, *self._rest_sizes])

    def to_picked(self, value: tf.Tensor) -> tf.Tensor:
        """[indices..., rest...] -> rows in a list."""
        return tf.reshape(value, [math.prod(self._indices_sizes), -1])

    def refuse_out_of_range(self, weights: mtf.Tensor) -> tf.Operation:
        """Fails, when the program runs, if an index is in no processor's part of the table."""
        return tf.debugging.Assert(
            tf.reduce_all(self.is_valid),
            [
                f"gather from {weights.name!r} {weights.shape} along {self._dim.name!r}: indices"
                f" must be in [0, {self._dim.size}). The smallest and the largest given:",
                tf.reduce_min(self._ids),
                tf.reduce_max(self._ids),
            ],
        )

    @property
    def _is_reordered(self) -> bool:
        return self._order != sorted(self._order)


def _not_a_number(dtype: tf.DType) -> tf.Tensor:
    """What is in no table: NaN, or the smallest integer."""
    return tf.constant(dtype.min if dtype.is_integer else math.nan, dtype)
