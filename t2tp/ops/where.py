"""Choosing between two tensors, element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.sizes import refuse_two_sizes

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def where(
    condition: mtf.Tensor,
    if_true: mtf.Tensor | float,
    if_false: mtf.Tensor | float,
    output_shape: mtf.Shape | None = None,
) -> mtf.Tensor:
    """`if_true` where `condition` is true, `if_false` elsewhere.

    mesh-tensorflow multiplies each by 0 or 1 and adds them up, so that a NaN or an infinity which
    is not chosen shows in the result; here it does not. The gradient by a branch is zero where it
    is not chosen. (As in TensorFlow, an operation *before* the branch may make a NaN of that zero:
    `where(x > 0, sqrt(x), 0)` has the gradient 0 * inf at 0. Choose its input too.)

    Args:
      condition: booleans.
      if_true: a tensor, or a number.
      if_false: a tensor of the same dtype, or a number; one of the two is a tensor.
      output_shape: order of the result's dimensions; by default as for a product of the three.

    Returns:
      a tensor with the dimensions of all three.

    Raises:
      ValueError: `condition` is not boolean, the dtypes differ, a dimension has two sizes, or
        `output_shape` lacks a dimension.
    """
    if_true, if_false = mtf.ops.binary_arguments_to_tensors(if_true, if_false)
    if condition.dtype != tf.bool or if_true.dtype != if_false.dtype:
        raise ValueError(
            "where takes booleans and two tensors of one dtype, not"
            f" {condition.dtype.name}, {if_true.dtype.name} and {if_false.dtype.name}."
        )
    refuse_two_sizes("where", [condition, if_true, if_false])
    output_shape = mtf.convert_to_shape(output_shape)
    if output_shape is None:
        output_shape = mtf.ops._infer_binary_broadcast_shape(
            mtf.ops._infer_binary_broadcast_shape(if_true.shape, condition.shape),
            mtf.ops._infer_binary_broadcast_shape(if_false.shape, condition.shape),
        )
    for tensor in (condition, if_true, if_false):
        missing = [d for d in tensor.shape.dims if d not in output_shape.dims]
        if missing:
            raise ValueError(f"where: output_shape {output_shape} lacks {missing} of {tensor}.")
    return WhereOperation(condition, if_true, if_false, output_shape).outputs[0]


class WhereOperation(mtf.Operation):
    """Inputs condition, if_true and if_false; the output has all their dimensions."""

    def __init__(
        self,
        condition: mtf.Tensor,
        if_true: mtf.Tensor,
        if_false: mtf.Tensor,
        output_shape: mtf.Shape,
    ) -> None:
        super().__init__([condition, if_true, if_false], name="where")
        self._outputs = [mtf.Tensor(self, output_shape, if_true.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        condition, if_true, if_false = self.inputs
        dy = grad_ys[0]
        zero = mtf.zeros(dy.mesh, [], dy.dtype)
        d_true = where(condition, dy, zero, dy.shape)
        d_false = where(condition, zero, dy, dy.shape)
        return [
            None,
            mtf.reduce_sum(d_true, output_shape=if_true.shape),
            mtf.reduce_sum(d_false, output_shape=if_false.shape),
        ]

    def lower(self, lowering: Lowering) -> None:
        shape = self.outputs[0].shape
        slices = [
            mtf.ops._expand_dims(lowering.slice(tensor), tensor.shape, shape)
            for tensor in self.inputs
        ]
        chosen = tf.where(*slices)
        sizes = lowering.mesh_impl(self).slice_shape(shape)
        lowering.set_slice(self.outputs[0], tf.broadcast_to(chosen, sizes))
