"""Takes one microbatch, one of several equal parts of a batch."""

from collections.abc import Container

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation, hooks
from t2tp.lowering.signature import ALL, Signature


def take_microbatch(
    x: upstream.Tensor,
    number: upstream.Tensor,
    whole: upstream.Dimension,
    part: upstream.Dimension,
    rows: int = 0,
) -> upstream.Tensor:
    """Returns microbatch `number` of the rows; `x` itself if it has no rows to divide.

    Args:
      x: [..., whole, ...].
      number: index of the microbatch, an int32 scalar.
      whole: the dimension of the rows.
      part: the dimension of a microbatch's rows.
      rows: the result of `rows_of_microbatch`, the length of a microbatch's ranges of consecutive
        rows. If a processor's share of the microbatch is shorter than a range, the rows are
        all-gathered first. 0: a microbatch is one range of each processor's rows.
    """
    if whole == part or whole not in x.shape.dims:
        return x
    return TakeMicrobatchOperation(x, number, whole, part, rows).outputs[0]


class TakeMicrobatchOperation(Operation):
    """Takes each processor's slice of a microbatch.

    Inputs: x and the index of a microbatch (int32).
    """

    def __init__(
        self,
        x: upstream.Tensor,
        number: upstream.Tensor,
        whole: upstream.Dimension,
        part: upstream.Dimension,
        rows: int,
    ) -> None:
        super().__init__([x, number], name="microbatch")
        self._axis = x.shape.dims.index(whole)
        self._rows = rows
        self.is_feature = hooks(x.operation).is_feature
        self.signature = Signature(ordered=ALL, pads=True, any_slice=self.is_feature, cost="copy")
        dims = [part if dim == whole else dim for dim in x.shape.dims]
        self.set_outputs((upstream.Shape(dims), x.dtype))

    def takes_leading_rows_of(self, tensors: Container[upstream.Tensor]) -> bool:
        """Whether the input is one of these tensors, and its rows are the first dimension."""
        return self._axis == 0 and self.inputs[0] in tensors

    def lower(self, lowering: Lowering) -> None:
        x, number = (lowering.slice(tensor) for tensor in self.inputs)
        mesh_impl, (y,) = lowering.mesh_impl(self), self.outputs
        size = mesh_impl.slice_shape(y.shape)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(y.shape.dims[self._axis])
        own = size[self._axis]
        if 0 < self._rows < own:
            # Raises an error if a processor's rows cannot be divided.
            lowering.parts_of(y.shape.dims[self._axis], mesh_impl.layout.with_whole_rows())
            before, after = size[: self._axis], size[self._axis + 1 :]
            shares = tf.reshape(x, [*before, own // self._rows, -1, self._rows, *after])
            x = tf.reshape(tf.gather(shares, number, axis=self._axis + 1), size)
            lowering.set_slice(y, x)
            return
        if self._rows > own and axis is not None:
            x = mesh_impl.collectives.allgather(x, axis, self._axis)
            ways = y.shape.dims[self._axis].size // own
            number = number * ways + mesh_impl.collectives.coordinate(axis)
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[self._axis] = number * own
        lowering.set_slice(y, tf.slice(x, tf.stack(begin), size))
