"""Gather: rows of a table by their index, where the table may be split over the mesh.

mesh-tensorflow's gather multiplies by a one-hot matrix, which costs as much as the table is long.
Here it costs what the rows cost. As there, an index out of range gives zeros: decoders written for
mesh-tensorflow look up position -1 in their first step. `checked_gather` raises an error instead,
for indices that should always be in range.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.lookup import Rows

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def gather(
    weights: mtf.Tensor,
    indices: mtf.Tensor | int,
    dim: mtf.Dimension,
    output_shape: mtf.Shape | None = None,
) -> mtf.Tensor:
    """`weights` at `indices` along `dim`; zeros where an index is out of range.

    Where `dim` is split, each processor looks up the rows that it holds, and a sum over the mesh
    axis brings them together.

    Args:
      weights: [..., dim, ...], any dtype.
      indices: integers. A dimension that it shares with `weights` is a batch dimension.
      dim: the dimension of `weights` to look up in.
      output_shape: order of the result's dimensions (new ones are broadcast); by default those of
        `indices`, then the other ones of `weights`.

    Returns:
      a tensor of the dtype of `weights`.

    Raises:
      ValueError: `weights` has no `dim`, `indices` are not integers or have it too, or
        `output_shape` lacks a dimension.
      LayoutError: of the program, if one mesh axis splits `dim` and a dimension of the indices.
    """
    return _gather(weights, indices, dim, output_shape, is_checked=False)


def checked_gather(
    weights: mtf.Tensor,
    indices: mtf.Tensor | int,
    dim: mtf.Dimension,
    output_shape: mtf.Shape | None = None,
) -> mtf.Tensor:
    """`gather` for indices that are always in [0, dim.size), such as token ids; same arguments.

    Raises:
      ValueError: as `gather`.
      LayoutError: as `gather`.
      tf.errors.InvalidArgumentError: when the program runs, an index is out of range. (Compiled by
        XLA, which cannot raise, the row is NaN, for integers the smallest number.)
    """
    return _gather(weights, indices, dim, output_shape, is_checked=True)


def _gather(
    weights: mtf.Tensor,
    indices: mtf.Tensor | int,
    dim: mtf.Dimension,
    output_shape: mtf.Shape | None,
    is_checked: bool,
) -> mtf.Tensor:
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
        return mtf.cast(_gather(weights_as_int, indices, dim, output_shape, is_checked), tf.bool)
    result = GatherOperation(weights, indices, dim, is_checked).outputs[0]
    output_shape = mtf.convert_to_shape(output_shape)
    if output_shape is None or output_shape == result.shape:
        return result
    return mtf.einsum([result], output_shape=output_shape, reduced_dims=[])


class GatherOperation(mtf.Operation):
    """Inputs weights [..., dim, ...] and indices [...]; output [indices..., rest of weights...]."""

    def __init__(
        self, weights: mtf.Tensor, indices: mtf.Tensor, dim: mtf.Dimension, is_checked: bool
    ) -> None:
        super().__init__([weights, indices], name="gather")
        self._dim = dim
        self._is_checked = is_checked
        rest = [d for d in weights.shape.dims if d != dim and d not in indices.shape.dims]
        self._outputs = [mtf.Tensor(self, indices.shape + rest, weights.dtype)]
        self.joint_shape = _joint_shape(indices, dim)

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        weights, indices = self.inputs
        return [GatherGradOperation(indices, grad_ys[0], weights.shape, self._dim).outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        weights, indices = self.inputs
        rows = Rows(lowering, weights.shape, indices, self._dim)
        # The sum over the mesh axis needs zeros where the row is another processor's.
        zero = tf.zeros([], weights.dtype)
        if self._is_checked:
            # Adding anything to a row that nobody has must not give a number that looks right.
            absent = tf.where(rows.is_valid, zero, _not_a_number(weights.dtype))
            with tf.control_dependencies([_refuse_out_of_range(rows, weights, self._dim)]):
                value = rows.pick(lowering.slice(weights), absent)
        else:
            value = rows.pick(lowering.slice(weights), zero)
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
        # Rows out of range had no part in the sums: their gradient is zero.
        return [None, gather(grad_ys[0], self.inputs[0], self._dim, self.inputs[1].shape)]

    def lower(self, lowering: Lowering) -> None:
        indices, dy = self.inputs
        weights_shape = self.outputs[0].shape
        rows = Rows(lowering, weights_shape, indices, self._dim)
        summed = [d for d in indices.shape.dims if d not in weights_shape.dims]
        lowering.set_partial_sum(self.outputs[0], rows.add_up(lowering.slice(dy)), summed)


def _joint_shape(indices: mtf.Tensor, dim: mtf.Dimension) -> mtf.Shape:
    """Dimensions that a layout must not split over one axis, though no tensor has them all: the sum
    over that axis would add up the rows of different indices."""
    return indices.shape + dim


def _refuse_out_of_range(rows: Rows, weights: mtf.Tensor, dim: mtf.Dimension) -> tf.Operation:
    """Fails, when the program runs, if an index is in no processor's part of the table."""
    return tf.debugging.Assert(
        tf.reduce_all(rows.is_valid),
        [
            f"gather from {weights.name!r} {weights.shape} along {dim.name!r}: indices must be in"
            f" [0, {dim.size}). The smallest and the largest given:",
            tf.reduce_min(rows.ids),
            tf.reduce_max(rows.ids),
        ],
    )


def _not_a_number(dtype: tf.DType) -> tf.Tensor:
    """What is in no table: NaN, or the smallest integer."""
    return tf.constant(dtype.min if dtype.is_integer else math.nan, dtype)
