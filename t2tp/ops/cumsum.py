"""Cumulative sums along a dimension that may be split over the mesh."""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import Signature
from t2tp.lowering.staged_sums import reduce_sum


def cumsum(x: upstream.Tensor, dim: upstream.Dimension, exclusive: bool = False) -> upstream.Tensor:
    """Computes cumulative sums along `dim`, which may be split.

    Each processor sums along its slice, and the slices' totals are all-gathered; mesh-tensorflow
    multiplies by a triangular matrix. 16-bit floats are summed in float32. With `exclusive`, a sum
    excludes the element itself.

    Raises:
      ValueError: `x` has no `dim`.
    """
    dim = upstream.convert_to_dimension(dim)
    if dim not in x.shape.dims:
        raise ValueError(f"cumsum: {x.name!r} {x.shape} has no dimension {dim}.")
    return CumsumOperation(x, dim, exclusive, reverse=False).outputs[0]


class CumsumOperation(Operation):
    """Input: x. Output: like x. `reverse` sums from the end."""

    def __init__(
        self, x: upstream.Tensor, dim: upstream.Dimension, exclusive: bool, reverse: bool
    ) -> None:
        super().__init__([x], name="cumsum")
        self._dim = dim
        self._exclusive = exclusive
        self._reverse = reverse
        exact = () if x.dtype.is_floating else [dim]
        self.signature = Signature(combined=[dim], ordered=[dim], exact=exact, cost="elementwise")
        self.set_outputs(x)

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        return CumsumOperation(
            grad_ys[0], self._dim, self._exclusive, reverse=not self._reverse
        ).outputs

    def lower(self, lowering: Lowering) -> None:
        mesh_impl = lowering.mesh_impl(self)
        dtype = self.outputs[0].dtype
        is_short = dtype.is_floating and dtype.size < 4
        x = tf.cast(lowering.slice(self.inputs[0]), tf.float32 if is_short else dtype)
        dim_axis = self.inputs[0].shape.dims.index(self._dim)
        sums = tf.cumsum(x, dim_axis, exclusive=self._exclusive, reverse=self._reverse)
        mesh_axis = mesh_impl.tensor_dimension_to_mesh_axis(self._dim)
        if mesh_axis is not None:
            total = reduce_sum(x, dim_axis, keepdims=True)
            totals = mesh_impl.collectives.allgather(total, mesh_axis, dim_axis)
            before = tf.cumsum(totals, dim_axis, exclusive=True, reverse=self._reverse)
            coordinate = mesh_impl.collectives.coordinate(mesh_axis)
            sums += tf.gather(before, tf.expand_dims(coordinate, 0), axis=dim_axis)
        lowering.set_slice(self.outputs[0], tf.cast(sums, dtype))
