"""What an operation does along each dimension, declared once.

The engine derives from an operation's signature whether a layout may split or pad a dimension,
whether the order of its positions matters, how `exact_sums` adds up a sum, how a sum over rows is
separated into the rows, whether an operation computes without communication, and how `t2tp_plan`
counts its work.

Along most dimensions, most operations are element-wise: an element of an output depends only on
those elements of the inputs that have the same index. A signature names the other dimensions:

    signature = Signature()                        # x -> sin(x)
    signature = Signature(summed=DROPPED)          # x -> sum of x, over the dimensions that y lacks
    self.signature = Signature(combined=[dim])     # x -> softmax of x along `dim`
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from t2tp import upstream
from t2tp.mesh.layout_conflicts import VECTOR

# Sets of dimensions that depend on the operation: all dimensions, and the dimensions of inputs that
# an output lacks.
ALL, DROPPED = frozenset({"all"}), frozenset({"dropped"})
Dims: TypeAlias = Collection[Any]


@dataclass(frozen=True)
class Signature:
    """What an operation does along each dimension of its inputs and outputs.

    The same dimension may have several of these properties. A dimension without any is
    element-wise.

    Attributes:
      summed: an output that lacks the dimension is the sum over it, which `lower` sets with
        `set_partial_sum`. `DROPPED` also says that `lower` sums over fewer dimensions if an output
        has more.
      combined: elements are combined in another way, such as in a softmax, a norm or a maximum.
        `lower` combines the slices. `exact_sums` refuses to split the dimension, unless it is also
        `exact`.
      ordered: the result depends on the order of the positions, such as in a convolution, or if
        indices refer to positions. Inputs and outputs are then never in head-tail order
        (`t2tp.lowering.head_tail`).
      whole: no layout may split the dimension.
      exact: with `exact_sums`, `lower` itself adds up in a fixed order along the dimension, or it
        adds up no floats along it, as in a maximum.
      pads: whether dimensions that are not element-wise may be padded (see `t2tp.mesh.storage`),
        because `lower` masks padding (with `lowering.masked_slice`).
      any_slice: whether `exact_sums` allows slices that do not fill SIMD vectors. True is correct
        if each output element is a copy, a product or a sum of two elements, or if `lower` pads the
        slices. Other functions may round the elements after the last full vector differently.
      linear: whether `lower` passes on a deferred sum without reducing it (see
        `lowering.partial_sum`).
      cost: the kind of work for `t2tp_plan`, one of `t2tp.step.work.KINDS`. `view`: the outputs
        are the inputs. `free`: it takes no time. By default it is `reduce` if a dimension is summed
        or combined, and `elementwise` otherwise.
    """

    summed: Dims = ()
    combined: Dims = ()
    ordered: Dims = ()
    whole: Dims = ()
    exact: Dims = ()
    pads: bool = False
    any_slice: bool = False
    linear: bool = False
    cost: str = ""

    def __post_init__(self) -> None:
        if not self.cost:
            is_reduction = bool(self.summed) or bool(self.combined)
            object.__setattr__(self, "cost", "reduce" if is_reduction else "elementwise")

    def is_elementwise(
        self, op: upstream.Operation, dim: upstream.Dimension, *, may_sum: bool = False
    ) -> bool:
        """Whether an output element depends only on input elements of the same index in `dim`.

        With `may_sum`, also whether it is a sum of such elements over `dim`.
        """
        others = (self.combined, self.ordered, self.whole, *(() if may_sum else (self.summed,)))
        return not any(has(dims, op, dim) for dims in others)


def has(dims: Dims, op: upstream.Operation, dim: upstream.Dimension) -> bool:
    """Whether a set of dimensions of a signature includes a dimension, in this operation."""
    if dims is DROPPED:
        return any(dim.name not in y.shape.dimension_names for y in op.outputs)
    return dims is ALL or dim in dims


# The signature of an operation that declares none: the engine assumes nothing about it.
UNDECLARED = Signature(combined=ALL, ordered=ALL, cost="elementwise")


def sums_along_rows(op: upstream.ReduceOperation) -> bool:
    """Whether `exact_sums` transposes the input, so that each sum is along a row of a matrix.

    Without the transposition, TensorFlow would sum several columns of the matrix at a time. The
    order of the additions would then depend on the size of the slice in two cases: a kept dimension
    is between summed dimensions, or the columns do not fill SIMD vectors. Only in these cases is
    the input transposed.
    """
    (x,), (y,) = op.inputs, op.outputs
    summed = [axis for axis, dim in enumerate(x.shape.dims) if dim not in y.shape.dims]
    if not summed:
        return False
    columns = math.prod(dim.size for dim in x.shape.dims[summed[-1] + 1 :])
    return summed[-1] - summed[0] >= len(summed) or columns % VECTOR > 0


def applies_function(op: upstream.Operation) -> bool:
    """Whether an operation applies a TensorFlow function to each element of one tensor."""
    if not isinstance(op, upstream.SlicewiseOperation) or len(op.inputs) + len(op.outputs) > 2:
        return False
    return op.inputs[0].shape == op.outputs[0].shape and not op.unsplittable_dims


def _of_constant(op: upstream.Constant) -> Signature:
    return Signature(ordered=ALL if np.ndim(op._value) else (), any_slice=True, cost="free")


def _of_einsum(op: upstream.EinsumOperation) -> Signature:
    # An einsum with a one-hot tensor may be lowered to a look-up. The look-up reads the ids instead
    # of the one-hot tensor. `Orders.during` converts only inputs of the einsum to head-tail order,
    # and the ids are not among them.
    looks_up = any(isinstance(x.operation, upstream.ops.OneHotOperation) for x in op.inputs)
    sums = any(has(DROPPED, op, dim) for x in op.inputs for dim in x.shape.dims)
    return Signature(summed=DROPPED, ordered=ALL if looks_up else (), pads=True, any_slice=not sums)


def _of_reduce(op: upstream.ReduceOperation) -> Signature:
    if op._reduction_fn_string == "SUM":
        return Signature(summed=DROPPED, pads=True, any_slice=sums_along_rows(op))
    return Signature(combined=DROPPED, exact=ALL, pads=True, any_slice=True)


def _of_slices(op: upstream.Operation) -> Signature:
    """Returns the signature of an operation on slices, which declares what cannot be split."""
    dims = [dim for x in (*op.inputs, *op.outputs) for dim in x.shape.dims]
    whole = [dim for dim in dims if dim.name not in op.splittable_dims]
    return Signature(
        combined=DROPPED,
        ordered=whole,
        pads=True,
        any_slice=applies_function(op),
        cost="elementwise",
    )


def _of_shift(op: upstream.ops.ShiftOperation) -> Signature:
    dims = [op._dim]
    return Signature(combined=dims, ordered=dims, exact=dims, cost="elementwise")


_COPY = Signature(linear=True, any_slice=True, cost="view")

# The signatures of mesh-tensorflow's operations, or functions that return them.
_UPSTREAM: dict[type, Signature | Callable[..., Signature]] = {
    upstream.AddOperation: Signature(linear=True, any_slice=True),
    upstream.Assign: Signature(ordered=ALL, pads=True, cost="update"),
    upstream.ops.BinaryOpWithBroadcasting: Signature(any_slice=True),
    upstream.BroadcastOperation: Signature(any_slice=True),
    upstream.ops.ConcatOperation: _of_slices,
    upstream.Constant: _of_constant,
    upstream.CustomGradientOperation: _COPY,
    upstream.Depend: _COPY,
    upstream.EinsumOperation: _of_einsum,
    upstream.GenericGradOperation: Signature(
        combined=DROPPED, ordered=ALL, pads=True, cost="elementwise"
    ),
    upstream.ops.ImportLaidOutTensorOperation: Signature(
        ordered=ALL, pads=True, any_slice=True, cost="free"
    ),
    upstream.ops.ImportOperation: Signature(ordered=ALL, pads=True, cost="free"),
    # Rarely in memory: look-ups read the ids, and a compiler fuses other readers with it.
    upstream.ops.OneHotOperation: Signature(ordered=ALL, pads=True, cost="view"),
    upstream.ops.PadOperation: _of_slices,
    upstream.PrintOperation: Signature(ordered=ALL, pads=True, cost="view"),
    upstream.RandomOperation: Signature(ordered=ALL, pads=True, cost="random"),
    upstream.ReduceOperation: _of_reduce,
    upstream.ReshapeOperation: Signature(
        ordered=ALL, pads=True, linear=True, any_slice=True, cost="copy"
    ),
    upstream.ScalarAddOperation: Signature(any_slice=True),
    upstream.ScalarMultiplyOperation: Signature(any_slice=True),
    upstream.ScalarSummaryOperation: Signature(ordered=ALL, pads=True, cost="view"),
    upstream.ops.ShiftOperation: _of_shift,
    upstream.ops.SliceOperation: _of_slices,
    upstream.SlicewiseOperation: _of_slices,
    upstream.ops.SplitOperation: _of_slices,
    upstream.ops.StackOperation: _of_slices,
    upstream.StopGradient: _COPY,
    upstream.ops.UnstackOperation: _of_slices,
    upstream.Variable: Signature(ordered=ALL, pads=True, cost="copy"),
    upstream.WhileLoopOperation: Signature(
        ordered=ALL, pads=True, linear=True, any_slice=True, cost="loop"
    ),
}


# The engine reads the signature of an operation about ten times.
_computed: WeakKeyDictionary[upstream.Operation, Signature] = WeakKeyDictionary()


def upstream_signature(op: upstream.Operation) -> Signature:
    """Returns the signature of mesh-tensorflow's operation, or of one derived from it."""
    if op not in _computed:
        known = next(
            (_UPSTREAM[base] for base in type(op).__mro__ if base in _UPSTREAM), UNDECLARED
        )
        _computed[op] = known if isinstance(known, Signature) else known(op)
    return _computed[op]
