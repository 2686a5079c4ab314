"""Sums in a fixed order, so that every mesh computes the same bits.

Floats are rounded after each addition, so a sum depends on the order of its additions. With
`exact_sums=8`, a dimension that a layout may split is cut into 8 equal parts of the *global*
dimension. An operation that sums over the dimension is lowered once for each part, and the parts
are added as a fixed binary tree:

    ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))

On `data:2`, each processor computes 4 parts of the batch and one half of the tree. The collective
adds the two halves, and so continues the same tree. With two microbatches, each of them computes 2
of a processor's 4 parts. One device computes all parts: the same additions in the same order.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Order
from t2tp.lowering.mesh_impl import LaidOutTensor, SpmdMeshImpl
from t2tp.lowering.operation import summed_in_parts
from t2tp.mesh.collectives import tree_sum
from t2tp.mesh.layout_conflicts import VECTOR


def lower_in_parts(
    op: upstream.Operation,
    lowering: Any,
    rule: Callable[[upstream.Operation, Any], None],
    dims: Sequence[upstream.Dimension],
) -> None:
    """Lowers an operation once for each part of the dimensions that it sums over.

    Args:
      op: the operation.
      lowering: the lowering of the graph, or of a part of an outer dimension.
      rule: the rule that lowers the operation.
      dims: the dimensions, the outer one first.
    """
    dim, *inner = dims
    num_parts, count = lowering.parts_of(dim)
    results: dict[upstream.Tensor, list[tf.Tensor]] = {y: [] for y in op.outputs}
    for number in range(count):
        part = PartLowering(lowering, op, dim, number, count, results)
        if inner:
            lower_in_parts(op, part, rule, inner)
        else:
            rule(op, part)
    for y, parts in results.items():
        names = y.shape.dimension_names
        if inner and parts:
            # The inner sums are completed before the parts of the outer one are added.
            mesh_impl = lowering.mesh_impl(op)
            axis = mesh_impl.tensor_dimension_to_mesh_axis(inner[0])
            if axis is not None and inner[0].name not in names:
                stacked = tf.stack(parts)
                parts = tf.unstack(mesh_impl.collectives.tree_allreduce(stacked, [axis], [y.name]))
        if dim.name in names:
            lowering.set_slice(y, tf.concat(parts, names.index(dim.name)))
        elif parts:
            lowering.set_parts(y, parts, dim, num_parts)


class PartLowering:
    """A lowering in which one dimension has only one part, for one operation."""

    def __init__(
        self,
        base: Any,
        op: upstream.Operation,
        dim: upstream.Dimension,
        number: int,
        count: int,
        results: dict[upstream.Tensor, list[tf.Tensor]],
    ) -> None:
        """Restricts a lowering.

        Args:
          base: the lowering of all parts.
          op: the operation that is lowered.
          dim: the dimension, of `count` parts on this processor.
          number: the number of the part on this processor.
          count: the number of parts on this processor.
          results: receives the value of each output.
        """
        self._base = base
        self._dim, self._number, self._count = dim, number, count
        self._results = results
        self._mesh_impl: SpmdMeshImpl = base.mesh_impl(op).of_part(dim.name, number, count)
        self.tensors = _PartTensors(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def mesh_impl(self, of: Any) -> SpmdMeshImpl:
        """Returns the mesh implementation, whose slices are those of the part."""
        del of
        return self._mesh_impl

    def slice(self, tensor: upstream.Tensor) -> tf.Tensor:
        """Returns the part's slice of a tensor."""
        value, names = self._base.slice(tensor), tensor.shape.dimension_names
        if self._dim.name not in names or self._count == 1:
            return value
        axis = names.index(self._dim.name)
        parts = self._base.shared(
            ("parts", value.ref(), axis, self._count), lambda: tf.split(value, self._count, axis)
        )
        return parts[self._number]

    def slice_in_order(self, tensor: upstream.Tensor, order: Order) -> tf.Tensor:
        """Returns the slice; no layout that has other orders is exact."""
        del order
        return self.slice(tensor)

    def masked_slice(
        self,
        tensor: upstream.Tensor,
        dims: Collection[upstream.Dimension] | None = None,
        value: complex = 0,
    ) -> tf.Tensor:
        """Returns the part's slice, without padding."""
        return self._mesh_impl.masked(self.slice(tensor), tensor.shape, dims, value)

    @contextlib.contextmanager
    def masking(self, *args: Any) -> Any:
        """Does nothing: summed dimensions have no padding."""
        del args
        yield

    def partial_sum(self, tensor: upstream.Tensor) -> tuple[tf.Tensor, list[int]]:
        """Returns the slice of the complete sum."""
        return self.slice(tensor), []

    def shared(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns a value that several operations need, of this part."""
        return self._base.shared((key, self._dim, self._number, self._count), make)

    def set_slice(self, tensor: upstream.Tensor, value: tf.Tensor) -> None:
        """Records the part's value of an output."""
        self._results[tensor].append(value)

    def set_partial_sum(
        self, tensor: upstream.Tensor, value: tf.Tensor, summed: Iterable[upstream.Dimension]
    ) -> None:
        """Records the part's addend of an output."""
        del summed
        self.set_slice(tensor, value)

    def set_sum_over_axes(self, tensor: upstream.Tensor, value: tf.Tensor, axes: list[int]) -> None:
        """Records the part's addend of an output."""
        del axes
        self.set_slice(tensor, value)

    def set_tensor_lowering(self, tensor: upstream.Tensor, laid_out_tensor: Any) -> None:
        """Records the part's addend of an output."""
        if isinstance(laid_out_tensor, upstream.LazyAllreduceSum):
            laid_out_tensor = laid_out_tensor.laid_out_input
        self.set_slice(tensor, laid_out_tensor.to_laid_out_tensor().slice)

    def set_parts(
        self,
        tensor: upstream.Tensor,
        parts: Sequence[tf.Tensor],
        dim: upstream.Dimension,
        num_parts: int,
    ) -> None:
        """Records the sum of the parts of an inner dimension."""
        del dim, num_parts
        self.set_slice(tensor, tree_sum(parts))


class _PartTensors:
    """The laid-out values of a lowering's tensors, restricted to a part."""

    def __init__(self, lowering: PartLowering) -> None:
        self._lowering = lowering

    def __getitem__(self, tensor: upstream.Tensor) -> LaidOutTensor:
        return LaidOutTensor([self._lowering.slice(tensor)])


def dims_in_parts(op: upstream.Operation, lowering: Any) -> list[upstream.Dimension]:
    """Returns the dimensions over which an operation sums in parts, the outer one first."""
    layout = lowering.mesh_impl(op).layout
    return [dim for dim in summed_in_parts(op, layout) if lowering.parts_of(dim)[0] > 1]


def in_vectors(x: tf.Tensor) -> tf.Tensor:
    """Appends zeros to the first dimension of a slice, so that it fills the processor's vectors."""
    padding = -x.shape[0] % VECTOR
    return tf.pad(x, [[0, padding], *([0, 0] for _ in x.shape[1:])]) if padding else x


def lower_in_vectors(op: upstream.SlicewiseOperation, lowering: Any) -> None:
    """Applies a function of elements to whole vectors: a rest would be rounded differently.

    Scalars stay scalars: they are the same on all layouts, and 1 / 1 in a vector is less than 1.
    """
    x = lowering.slice(op.inputs[0])
    if math.prod(x.shape) % VECTOR == 0 or not x.shape.rank:
        op.lower(lowering)
        return
    y = op._tf_fn(in_vectors(tf.reshape(x, [-1])))[: math.prod(x.shape)]
    lowering.set_slice(op.outputs[0], tf.reshape(y, x.shape))
