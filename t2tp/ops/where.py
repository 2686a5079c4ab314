"""Element-wise selection between two tensors."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import Signature
from t2tp.lowering.slice_shapes import expanded
from t2tp.mesh.sizes import check_consistent_sizes


def where(
    condition: upstream.Tensor,
    if_true: upstream.Tensor | float,
    if_false: upstream.Tensor | float,
    output_shape: upstream.Shape | None = None,
) -> upstream.Tensor:
    """Returns `if_true` where `condition` is true, `if_false` elsewhere.

    mesh-tensorflow multiplies the branches by 0 or 1 and adds them. A NaN or infinity in the branch
    that is not selected then makes the result NaN. Here only the selected element counts. The
    gradient w.r.t. a branch is zero where the branch is not selected. As in TensorFlow, an
    operation *before* the branch may turn that zero into NaN: `where(x > 0, sqrt(x), 0)` has the
    gradient 0 * inf at 0. To avoid this, apply `where` to the input of `sqrt` too.

    Args:
      condition: booleans.
      if_true: a tensor, or a number.
      if_false: a tensor of the same dtype, or a number; one of the two is a tensor.
      output_shape: order of the result's dimensions; by default as for an einsum of all three
        tensors.

    Returns:
      a tensor with the dimensions of all three.

    Raises:
      ValueError: `condition` is not boolean, the dtypes differ, a dimension has two sizes, or
        `output_shape` lacks a dimension.
    """
    if_true, if_false = upstream.ops.binary_arguments_to_tensors(if_true, if_false)
    if condition.dtype != tf.bool or if_true.dtype != if_false.dtype:
        raise ValueError(
            "where takes booleans and two tensors of one dtype, not"
            f" {condition.dtype.name}, {if_true.dtype.name} and {if_false.dtype.name}."
        )
    inputs = [condition, if_true, if_false]
    check_consistent_sizes("where", inputs)
    output_shape = upstream.convert_to_shape(output_shape)
    if output_shape is None:
        output_shape = upstream.ops._infer_binary_broadcast_shape(
            upstream.ops._infer_binary_broadcast_shape(if_true.shape, condition.shape),
            upstream.ops._infer_binary_broadcast_shape(if_false.shape, condition.shape),
        )
    for tensor in inputs:
        missing = [d for d in tensor.shape.dims if d not in output_shape.dims]
        if missing:
            raise ValueError(f"where: output_shape {output_shape} lacks {missing} of {tensor}.")
    return WhereOperation(inputs, output_shape).outputs[0]


class WhereOperation(Operation):
    """Inputs: condition, if_true and if_false. Output: with all their dimensions."""

    signature = Signature(any_slice=True)

    def __init__(self, inputs: Sequence[upstream.Tensor], output_shape: upstream.Shape) -> None:
        super().__init__(list(inputs), name="where")
        self.set_outputs((output_shape, inputs[1].dtype))

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor | None]:
        condition, if_true, if_false = self.inputs
        dy = grad_ys[0]
        zero = upstream.zeros(dy.mesh, [], dy.dtype)
        d_true = where(condition, dy, zero, dy.shape)
        d_false = where(condition, zero, dy, dy.shape)
        return [
            None,
            upstream.reduce_sum(d_true, output_shape=if_true.shape),
            upstream.reduce_sum(d_false, output_shape=if_false.shape),
        ]

    def lower(self, lowering: Lowering) -> None:
        shape = self.outputs[0].shape
        slices = [expanded(lowering.slice(x), x.shape, shape) for x in self.inputs]
        chosen = tf.where(*slices)
        sizes = lowering.mesh_impl(self).slice_shape(shape)
        lowering.set_slice(self.outputs[0], tf.broadcast_to(chosen, sizes))
