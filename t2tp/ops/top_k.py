"""Top k along a dimension that may be split over the mesh."""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import Signature
from t2tp.ops.gather import GatherGradOperation


def top_k(
    x: upstream.Tensor,
    reduced_dim: upstream.Dimension,
    k_dim: upstream.Dimension,
    name: str | None = None,
) -> tuple[upstream.Tensor, upstream.Tensor]:
    """Returns the k largest elements in descending order; ties in ascending order of index.

    Each processor finds the k largest elements of its slice, and these candidates are all-gathered.

    Args:
      x: [..., reduced_dim, ...], numbers.
      reduced_dim: a dimension of `x`.
      k_dim: a dimension of size k; no layout may split it.
      name: operation name.

    Returns:
      values, of the dtype of `x`, and int32 indices, both [..., k_dim].

    Raises:
      ValueError: `x` has no `reduced_dim`, or k is above its size.
    """
    reduced_dim, k_dim = (upstream.convert_to_dimension(d) for d in (reduced_dim, k_dim))
    values, indices = TopKOperation(x, reduced_dim, k_dim, name=name).outputs
    return values, indices


def argmax(
    x: upstream.Tensor, reduced_dim: upstream.Dimension, name: str | None = None
) -> upstream.Tensor:
    """Returns the int32 index of the largest element along a dimension; the first of ties."""
    one = upstream.Dimension("_one", 1)
    _, indices = top_k(x, reduced_dim, one, name)
    return upstream.reshape(indices, indices.shape - one)


class TopKOperation(Operation, upstream.TopKOperation):
    """Input: x. Outputs: values and indices."""

    def __init__(
        self,
        x: upstream.Tensor,
        reduced_dim: upstream.Dimension,
        k_dim: upstream.Dimension,
        name: str | None,
    ) -> None:
        super().__init__(x, reduced_dim, k_dim, name=name)
        self.signature = Signature(ordered=[reduced_dim], pads=True, any_slice=True)

    def lower(self, lowering: Lowering) -> None:
        (x,) = self.inputs
        mesh_impl, k, dim = lowering.mesh_impl(self), self._k_dim.size, self._reduced_dim
        axis = x.shape.dims.index(dim)
        part = mesh_impl.masked(lowering.slice(x), x.shape, [dim], x.dtype.min)
        part = tf.transpose(part, [*(i for i in range(x.shape.ndims) if i != axis), axis])
        values, indices = _largest(part, k)
        mesh_axis = mesh_impl.tensor_dimension_to_mesh_axis(dim)
        if mesh_axis is not None:
            indices += mesh_impl.collectives.coordinate(mesh_axis) * part.shape[-1]
            values, indices = (
                mesh_impl.collectives.allgather(each, mesh_axis, x.shape.ndims - 1)
                for each in (values, indices)
            )
            values, places = _largest(values, k)
            indices = tf.gather(indices, places, batch_dims=x.shape.ndims - 1)
        lowering.set_slice(self.outputs[0], values)
        lowering.set_slice(self.outputs[1], indices)

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        x, indices = self.inputs[0], self.outputs[1]
        return GatherGradOperation([indices, grad_ys[0]], x.shape, self._reduced_dim).outputs


def _largest(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the up to k largest elements along the last dimension, and their int32 indices."""
    if k > 1:
        return tf.math.top_k(x, min(k, x.shape[-1]))
    # Faster than top_k, which sorts.
    return tf.reduce_max(x, -1, keepdims=True), tf.argmax(x, -1, tf.int32)[..., None]
