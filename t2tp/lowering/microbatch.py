"""The rows of the full batch that the tensors of a microbatch hold.

Usually a microbatch has some of each processor's rows of the batch; with
`Layout.spreads_microbatches` it has consecutive rows of the batch. A random tensor must be the same
for any number of microbatches and on any mesh, so its elements are numbered by their index in the
tensor of the full batch. For this the engine must know which dimensions count rows: `batch`, and
dimensions that `batch` is reshaped to, such as groups of tokens for experts. The engine finds these
dimensions by following reshapes in the graph.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import tensorflow as tf

from t2tp import upstream
from t2tp.mesh.layout import Layout

Dims = tuple[upstream.Dimension, ...]

# Operations that keep a dimension's name and change its size.
_RESIZING = (
    upstream.ops.ConcatOperation,
    upstream.ops.SplitOperation,
    upstream.ops.SliceOperation,
    upstream.ops.PadOperation,
)


@dataclass(frozen=True)
class Microbatch:
    """One of several equal parts of a batch.

    Attributes:
      number: the index of this microbatch, an integer scalar.
      count: number of microbatches of the batch.
      rows: the result of `rows_of_microbatch`.
      per_row: the result of `elements_per_row`.
    """

    number: tf.Tensor
    count: int
    rows: int
    per_row: Mapping[upstream.Dimension, set[Fraction]]

    def whole_size(self, dim: upstream.Dimension) -> int:
        """Returns the size of a dimension in the full batch's tensor."""
        return dim.size * self.count if dim in self.per_row else dim.size

    def whole_index(self, dim: upstream.Dimension, index: tf.Tensor) -> tf.Tensor:
        """Converts int32 indices along a dimension from a microbatch's tensor to the full batch's.

        Raises:
          ValueError: dimensions of this name and size count rows in two different ways.
        """
        if dim not in self.per_row:
            return index
        ways = sorted(self.per_row[dim])
        if len(ways) > 1:
            raise ValueError(
                "With microbatches, random operations need to know which rows a dimension counts,"
                f" but {dim} has {' and '.join(map(str, ways))} elements per row in different"
                " tensors: give one of the dimensions another name."
            )
        run = self.rows * ways[0]
        # `run` is the number of consecutive indices of a microbatch along the dimension. If each
        # index is a group of rows that are on several processors, `run` is a fraction. All groups
        # of a microbatch are then consecutive.
        size = int(run) if run.denominator == 1 else dim.size
        number = tf.cast(self.number, index.dtype)
        return (index // size * self.count + number) * size + index % size


def rows_of_microbatch(part: upstream.Dimension, layout: Layout) -> int:
    """Returns the length of the ranges of consecutive rows that a microbatch takes from the batch.

    With `Layout.spreads_microbatches` there is one range. Otherwise there is one range for each
    slice of the batch. With `exact_sums`, the axes that split positions also count as axes that
    split the batch. `part` is the batch dimension of a microbatch.
    """
    if layout.spreads_microbatches:
        return part.size
    if layout.exact_sums:
        layout = layout.with_whole_rows()
    return layout.slice_size(upstream.Shape([part]))[0]


def elements_per_row(
    batch: upstream.Dimension, operations: Iterable[upstream.Operation]
) -> dict[upstream.Dimension, set[Fraction]]:
    """Finds the dimensions that count rows, and how many elements of each belong to a row.

    The number is a fraction if a dimension counts groups of several rows. Random tensors have no
    inputs to follow, so dimensions of the same name and size are assumed to count rows in the same
    way.
    """
    pairs: dict[tuple[bool, Dims, Dims], None] = {}  # Ordered, unlike a set.
    for op in operations:
        is_reshape = isinstance(op, upstream.ReshapeOperation)
        if is_reshape or isinstance(op, _RESIZING):
            for x, y in itertools.product(op.inputs, op.outputs):
                pairs[is_reshape, tuple(x.shape.dims), tuple(y.shape.dims)] = None
    # Follows reshapes backwards too: a random tensor may be reshaped to a tensor with `batch`.
    pairs |= {(is_reshape, new, old): None for is_reshape, old, new in pairs}
    found = {batch: {Fraction(1)}}
    size = 0
    while size != (size := sum(map(len, found.values()))):
        for is_reshape, old, new in pairs:
            for dim in [each for each in old if len(found.get(each, ())) == 1]:
                if is_reshape:
                    _add_reshaped(found, batch.size, old, dim, new)
                    continue
                for other in new:
                    if other.name == dim.name:
                        found.setdefault(other, set()).update(found[dim])
    return found


def _add_reshaped(
    found: dict[upstream.Dimension, set[Fraction]],
    rows: int,
    old: Dims,
    dim: upstream.Dimension,
    new: Dims,
) -> None:
    """Adds the dimensions that count the rows after a reshape, if `dim` counts them before it."""
    (per_row,) = found[dim]
    # The distance between rows in the row-major order, which reshapes keep.
    stride = _strides(old)[old.index(dim)] * per_row
    strides = dict(zip(new, _strides(new), strict=True))
    # `first` is the distance between rows or, if `dim` counts groups of rows, between groups.
    # `last` is the number of elements over which all rows together extend.
    first = stride / min(per_row, Fraction(1))
    last = stride * min(Fraction(rows), dim.size / per_row)
    fresh = [d for d in new if d not in old]
    others = fresh if first == last else new
    ways = (
        # The same dimension, or a new one with the same indices.
        (d for d in new if d == dim and strides[d] == first),
        (d for d in fresh if strides[d] == first and strides[d] * d.size == last),
        # A dimension of size 1, if all rows are in one group.
        (d for d in fresh if strides[d] == last and d.size == 1),
        # The outermost dimension that the rows extend over, such as rows merged with heads.
        (d for d in others if strides[d] < last <= strides[d] * d.size),
        # A single row, merged with a dimension before it.
        (d for d in fresh if first == last == strides[d]),
    )
    other = next(itertools.chain(*ways), None)
    if other is not None:
        found.setdefault(other, set()).add(stride / strides[other])


def _strides(dims: Sequence[upstream.Dimension]) -> list[int]:
    return [math.prod(dim.size for dim in dims[i + 1 :]) for i in range(len(dims))]
