"""Gather: looks up rows of a table by index; the table may be split over the mesh.

mesh-tensorflow's gather multiplies by a one-hot matrix, so its cost grows with the table. Here the
cost grows with the rows looked up. An index out of range gives zeros, as in mesh-tensorflow:
decoders that were written for mesh-tensorflow look up position -1 in their first step.
With `is_checked` it raises an error instead, for indices that should always be in range.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.row_gather import TableRows
from t2tp.lowering.signature import DROPPED, Signature
from t2tp.ops.cast import cast


def gather(
    weights: upstream.Tensor,
    indices: upstream.Tensor | int,
    dim: upstream.Dimension,
    output_shape: upstream.Shape | None = None,
    *,
    is_checked: bool = False,
) -> upstream.Tensor:
    """Looks up `weights` at `indices` along `dim`; an index out of range gives zeros.

    If `dim` is split, each processor looks up the rows in its slice, and an all-reduce over the
    mesh axis adds them up.

    Args:
      weights: [..., dim, ...], any dtype.
      indices: integers. A dimension shared with `weights` is a batch dimension.
      dim: the dimension of `weights` to look up in.
      output_shape: order of the result's dimensions (new ones are broadcast). Default: the
        dimensions of `indices`, then the remaining dimensions of `weights`.
      is_checked: whether to raise an error if an index, such as a token id, is out of range.

    Returns:
      a tensor of the dtype of `weights`.

    Raises:
      ValueError: `weights` has no `dim`, `indices` are not integers or also have `dim`, or
        `output_shape` lacks a dimension.
      LayoutError: when the program is built, if one mesh axis splits both `dim` and a dimension of
        the indices.
      tf.errors.InvalidArgumentError: with `is_checked`, when the program runs, an index is out of
        range. (XLA cannot raise errors. A program compiled by XLA sets the row to NaN, or to the
        smallest integer.)
    """
    if not isinstance(indices, upstream.Tensor):
        indices = upstream.constant(weights.mesh, indices, dtype=tf.int32)
    dim = upstream.convert_to_dimension(dim)
    if dim not in weights.shape.dims:
        raise ValueError(f"gather: {weights.name!r} {weights.shape} has no dimension {dim}.")
    if not indices.dtype.is_integer or dim in indices.shape.dims:
        raise ValueError(
            f"gather along {dim}: indices must be integers without that dimension, not"
            f" {indices.dtype.name} {indices.shape}."
        )
    if weights.dtype == tf.bool:
        as_int = cast(weights, tf.int32)
        return cast(gather(as_int, indices, dim, output_shape, is_checked=is_checked), tf.bool)
    result = GatherOperation([weights, indices], dim, is_checked).outputs[0]
    output_shape = upstream.convert_to_shape(output_shape)
    if output_shape is None or output_shape == result.shape:
        return result
    return upstream.einsum([result], output_shape=output_shape, reduced_dims=[])


class GatherOperation(Operation):
    """Gathers weights.

    Inputs: weights [..., dim, ...] and indices [...]. Output: [indices..., rest of weights...].
    """

    def __init__(
        self, inputs: Sequence[upstream.Tensor], dim: upstream.Dimension, is_checked: bool
    ) -> None:
        super().__init__(list(inputs), name="gather")
        weights, indices = inputs
        self._dim = dim
        self._is_checked = is_checked
        rest = [d for d in weights.shape.dims if d != dim and d not in indices.shape.dims]
        self._outputs = [upstream.Tensor(self, indices.shape + rest, weights.dtype)]
        # Each processor adds zeros in place of another processor's rows, which is exact.
        self.signature = Signature(
            summed=[dim], ordered=[dim], exact=[dim], pads=True, any_slice=True, cost="gather"
        )

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        weights, indices = self.inputs
        inputs = [indices, *grad_ys]
        return [GatherGradOperation(inputs, weights.shape, self._dim).outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        weights, indices = self.inputs
        rows = TableRows(lowering, weights.shape, indices, self._dim)
        # The all-reduce needs zeros in place of another processor's rows.
        absent, checks = tf.zeros([], weights.dtype), []
        if self._is_checked:
            # A row that no processor has must not give a plausible value, even after the
            # all-reduce.
            dtype = weights.dtype
            invalid = tf.constant(dtype.min if dtype.is_integer else math.nan, dtype)
            absent = tf.where(rows.is_valid, absent, invalid)
            checks = [_check_in_range(rows, weights, self._dim)]
        with tf.control_dependencies(checks):
            value = rows.pick(lowering.slice(weights), absent)
        lowering.set_partial_sum(self.outputs[0], value, [self._dim])


class GatherGradOperation(Operation):
    """Computes the gradient of a gather.

    Inputs: indices [...] and the gradient w.r.t. the result. Output: the gradient w.r.t. the
      weights.
    """

    def __init__(
        self,
        inputs: Sequence[upstream.Tensor],
        weights_shape: upstream.Shape,
        dim: upstream.Dimension,
    ) -> None:
        super().__init__(list(inputs), name="gather_grad")
        self._dim = dim
        self.set_outputs((weights_shape, inputs[1].dtype))
        self.signature = Signature(summed=DROPPED, ordered=[dim], pads=True, cost="gather")

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        # The output does not depend on rows of `dy` whose index is out of range, so their gradient
        # is 0. `gather` returns zeros for these indices.
        return [None, gather(grad_ys[0], self.inputs[0], self._dim, self.inputs[1].shape)]

    def lower(self, lowering: Lowering) -> None:
        indices, dy = self.inputs
        weights_shape = self.outputs[0].shape
        rows = TableRows(lowering, weights_shape, indices, self._dim)
        summed = [d for d in indices.shape.dims if d not in weights_shape.dims]
        lowering.set_partial_sum(self.outputs[0], rows.add_up(lowering.slice(dy)), summed)


def _check_in_range(
    rows: TableRows, weights: upstream.Tensor, dim: upstream.Dimension
) -> tf.Operation:
    """Raises an error, when the program runs, if no processor has the row of an index."""
    return tf.debugging.Assert(
        tf.reduce_all(rows.is_valid),
        [
            f"gather from {weights.name!r} {weights.shape} along {dim.name!r}: indices must be in"
            f" [0, {dim.size}). The smallest and the largest given:",
            tf.reduce_min(rows.ids),
            tf.reduce_max(rows.ids),
        ],
    )
