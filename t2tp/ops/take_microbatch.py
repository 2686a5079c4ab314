"""One of several equal parts of each processor's rows."""

from collections.abc import Container

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation, hooks


def take_microbatch(
    x: upstream.Tensor,
    number: upstream.Tensor,
    whole: upstream.Dimension,
    part: upstream.Dimension,
    spread: bool = False,
) -> upstream.Tensor:
    """Returns microbatch `number` of each processor's rows; `x` if there is but one, or no rows.

    Args:
      x: [..., whole, ...].
      number: int32 scalar.
      whole: the dimension of the rows.
      part: the dimension of a microbatch's rows.
      spread: whether it has consecutive rows of the batch; see `Layout.spreads_microbatches`.
    """
    if whole == part or whole not in x.shape.dims:
        return x
    return TakeMicrobatchOperation(x, number, whole, part, spread).outputs[0]


class TakeMicrobatchOperation(Operation):
    """Takes a microbatch's slice of each processor's rows.

    Inputs: x and the index of a microbatch (int32).
    """

    cost_kind = "copy"
    accepts_padding = True

    def __init__(
        self,
        x: upstream.Tensor,
        number: upstream.Tensor,
        whole: upstream.Dimension,
        part: upstream.Dimension,
        spread: bool,
    ) -> None:
        super().__init__([x, number], name="microbatch")
        self._axis = x.shape.dims.index(whole)
        self._spread = spread
        self.is_feature = hooks(x.operation).is_feature
        dims = [part if dim == whole else dim for dim in x.shape.dims]
        self._outputs = [upstream.Tensor(self, upstream.Shape(dims), x.dtype)]

    def takes_leading_rows_of(self, tensors: Container[upstream.Tensor]) -> bool:
        """Whether it takes rows of one of these tensors, and these are its first dimension."""
        return self._axis == 0 and self.inputs[0] in tensors

    def lower(self, lowering: Lowering) -> None:
        x, number = (lowering.slice(tensor) for tensor in self.inputs)
        mesh_impl, (y,) = lowering.mesh_impl(self), self.outputs
        size = mesh_impl.slice_shape(y.shape)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(y.shape.dims[self._axis])
        if self._spread and axis is not None:
            x = mesh_impl.collectives.allgather(x, axis, self._axis)
            ways = y.shape.dims[self._axis].size // size[self._axis]
            number = number * ways + mesh_impl.collectives.coordinate(axis)
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[self._axis] = number * size[self._axis]
        lowering.set_slice(self.outputs[0], tf.slice(x, tf.stack(begin), size))
