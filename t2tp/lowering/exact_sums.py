"""Sums in a fixed order, so that every mesh computes the same bits.

Floats are rounded after each addition, so a sum depends on the order of its additions. With
`exact_sums=8`, each dimension that a layout may split, except `length`, is cut into 8 equal parts.
If 8 does not divide its size, there are gcd(8, size) parts. The *global* dimension is cut, so the
parts are the same on every layout. An operation that sums over the dimension is lowered once for
each part. The sums of the parts are added as a binary tree:

    ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))

On `data:2`, each processor computes the sums of 4 parts of the batch and adds them. The collective
adds the two halves of the tree. With two microbatches, each microbatch computes 2 of a processor's
4 parts. One device computes all 8 parts, with the same additions in the same order.

A sum over rows and positions, such as a weight's gradient on `seq:2` with `length:seq`, is computed
from whole rows: an all-to-all gives each processor all positions of half of its rows. The axis then
splits rows instead of positions, and each processor again computes one half of the tree.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Order
from t2tp.lowering.mesh_impl import LaidOutTensor, SpmdMeshImpl
from t2tp.lowering.operation import summed_in_parts
from t2tp.lowering.reshape import relayout
from t2tp.lowering.staged_sums import reduce_sum
from t2tp.mesh.collectives import tree_sum
from t2tp.mesh.dimensions import POSITIONS
from t2tp.mesh.layout import Layout
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
      lowering: the graph's lowering or, for an inner dimension, the outer part's `PartLowering`.
      rule: the operation's lowering rule.
      dims: the dimensions to sum over, the outermost first. The innermost sum is completed first.
    """
    dim, *inner = dims
    mesh_impl = lowering.mesh_impl(op)
    if _sums_split_positions(op, mesh_impl.layout):
        mesh_impl = mesh_impl.with_layout(mesh_impl.layout.with_whole_rows())
    num_parts, count = lowering.parts_of(dim, mesh_impl.layout)
    results: dict[upstream.Tensor, list[tf.Tensor]] = {y: [] for y in op.outputs}
    for number in range(count):
        part = PartLowering(lowering, mesh_impl, dim, number, count, results)
        if inner:
            lower_in_parts(op, part, rule, inner)
        else:
            rule(op, part)
    for y, parts in results.items():
        names = y.shape.dimension_names
        if inner and parts:
            # The inner sum must be complete before the parts of the outer dimension are added.
            axes = mesh_impl.axes_of([inner[0]])
            if axes and inner[0].name not in names:
                stacked = tf.stack(parts)
                parts = tf.unstack(mesh_impl.collectives.sum(stacked, axes, [y.name]))
        if dim.name in names:
            value = tf.concat(parts, names.index(dim.name))
            lowering.set_slice(y, relayout(value, y.shape, mesh_impl, lowering.mesh_impl(op)))
        elif parts:
            lowering.set_parts(y, parts, mesh_impl.axes_of([dim]), (dim.name, num_parts))


@dataclass(eq=False)
class PartLowering:
    """Lowers one operation for one part of one dimension.

    Attributes:
      base: the lowering that is restricted to the part.
      whole_mesh_impl: the mesh implementation of all parts. It may have another layout, with whole
        rows.
      dim: the dimension.
      number: the index of the part among the processor's parts.
      count: the number of the processor's parts.
      results: receives the part's value of each output.
    """

    base: Any
    whole_mesh_impl: SpmdMeshImpl
    dim: upstream.Dimension
    number: int
    count: int
    results: dict[upstream.Tensor, list[tf.Tensor]]

    def __post_init__(self) -> None:
        self._mesh_impl = self.whole_mesh_impl.of_part(self.dim.name, self.number, self.count)
        self.tensors = _PartTensors(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def mesh_impl(self, of: Any) -> SpmdMeshImpl:
        """Returns the mesh implementation with the slice shapes of the part."""
        del of
        return self._mesh_impl

    def slice(self, tensor: upstream.Tensor) -> tf.Tensor:
        """Returns the part's slice of a tensor."""
        value, names = self.base.slice(tensor), tensor.shape.dimension_names
        before, after = self.base.mesh_impl(tensor), self.whole_mesh_impl
        if before is not after:
            value = self.base.shared(
                ("whole rows", value.ref(), *names),
                lambda x=value: relayout(x, tensor.shape, before, after),
            )
        if self.dim.name not in names or self.count == 1:
            return value
        axis = names.index(self.dim.name)
        parts = self.base.shared(
            ("parts", value.ref(), axis, self.count), lambda: tf.split(value, self.count, axis)
        )
        return parts[self.number]

    def slice_in_order(self, tensor: upstream.Tensor, order: Order) -> tf.Tensor:
        """Returns the slice; `exact_sums` never uses head-tail order."""
        del order
        return self.slice(tensor)

    def masked_slice(
        self,
        tensor: upstream.Tensor,
        dims: Collection[upstream.Dimension] | None = None,
        value: complex = 0,
    ) -> tf.Tensor:
        """Returns the part's slice with `value` in place of its padding."""
        return self._mesh_impl.masked(self.slice(tensor), tensor.shape, dims, value)

    def masking(self, *args: Any) -> contextlib.AbstractContextManager:
        """Does nothing: with `exact_sums`, summed dimensions have no padding."""
        del args
        return contextlib.nullcontext()

    def partial_sum(self, tensor: upstream.Tensor) -> tuple[tf.Tensor, list[int]]:
        """Returns the slice and no axes: inputs are complete sums here."""
        return self.slice(tensor), []

    def shared(self, key: Any, make: Callable[[], Any]) -> Any:
        """Like `GraphLowering.shared`, with the part in the key."""
        return self.base.shared((key, self.dim, self.number, self.count), make)

    def set_slice(self, tensor: upstream.Tensor, value: tf.Tensor, *summed: Any) -> None:
        """Records the part's value of an output, or its addend of a sum."""
        del summed
        self.results[tensor].append(value)

    set_partial_sum = set_sum_over_axes = set_slice

    def set_tensor_lowering(self, tensor: upstream.Tensor, laid_out_tensor: Any) -> None:
        """Records the part's addend of an output."""
        if isinstance(laid_out_tensor, upstream.LazyAllreduceSum):
            laid_out_tensor = laid_out_tensor.laid_out_input
        self.set_slice(tensor, laid_out_tensor.to_laid_out_tensor().slice)

    def set_parts(self, tensor: upstream.Tensor, parts: Sequence[tf.Tensor], *summed: Any) -> None:
        """Records the sum of the parts of an inner dimension; see `Lowering.set_parts`."""
        del summed
        self.set_slice(tensor, tree_sum(parts))


class _PartTensors:
    """The laid-out values of a lowering's tensors, restricted to a part."""

    def __init__(self, lowering: PartLowering) -> None:
        self._lowering = lowering

    def __getitem__(self, tensor: upstream.Tensor) -> LaidOutTensor:
        return LaidOutTensor([self._lowering.slice(tensor)])


def dims_in_parts(op: upstream.Operation, lowering: Any) -> list[upstream.Dimension]:
    """Returns the dimensions over which an operation sums in parts, outermost first."""
    layout = lowering.mesh_impl(op).layout
    dims = summed_in_parts(op, layout)
    if _sums_split_positions(op, layout):
        layout = layout.with_whole_rows()
    return [dim for dim in dims if lowering.parts_of(dim, layout)[0] > 1]


def _sums_split_positions(op: upstream.Operation, layout: Layout) -> bool:
    """Whether an operation sums over `length` and the layout splits `length`."""
    inputs, outputs = ([x.shape.dimension_names for x in xs] for xs in (op.inputs, op.outputs))
    is_summed = any(POSITIONS in x for x in inputs) and not all(POSITIONS in y for y in outputs)
    return is_summed and layout.axis_index(POSITIONS) is not None


def sum_in_parts(x: tf.Tensor, count: int) -> tf.Tensor:
    """Sums over the last dimension, as a tree of `count` equal parts."""
    if count == 1:
        return reduce_sum(x, x.shape.rank - 1)
    by_part = tf.reduce_sum(tf.reshape(x, [*x.shape[:-1], count, -1]), -1)
    return tree_sum(tf.unstack(by_part, axis=-1))


def in_vectors(x: tf.Tensor) -> tf.Tensor:
    """Pads the first dimension of a slice with zeros to a multiple of a SIMD vector's size."""
    padding = -x.shape[0] % VECTOR
    return tf.pad(x, [[0, padding], *([0, 0] for _ in x.shape[1:])]) if padding else x


def lower_in_vectors(op: upstream.SlicewiseOperation, lowering: Any) -> None:
    """Applies an elementwise function to slices that are padded to whole SIMD vectors.

    TensorFlow rounds the elements of an incomplete vector differently. Scalars are not padded. No
    layout splits them, so they need no padding, and vectorized code would compute 1/1 as slightly
    less than 1.
    """
    x = lowering.slice(op.inputs[0])
    if math.prod(x.shape) % VECTOR == 0 or not x.shape.rank:
        op.lower(lowering)
        return
    y = op._tf_fn(in_vectors(tf.reshape(x, [-1])))[: math.prod(x.shape)]
    lowering.set_slice(op.outputs[0], tf.reshape(y, x.shape))
