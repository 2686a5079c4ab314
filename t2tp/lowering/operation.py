"""Operations: their gradient, their lowering for a processor, and their hooks.

A mesh-tensorflow graph consists of operations on tensors with named dimensions. Most programs need
no custom operations: `mtf.slicewise` applies a TensorFlow function to each slice, and `mtf.einsum`
computes any product. Write an operation if slices must be combined over the mesh, if you know a
cheaper gradient than TensorFlow's, or if the backward pass should save other activations than
TensorFlow would.

This is the sum of squares along a dimension that a layout may split:

```python
import tensorflow as tf
import t2tp
from t2tp import mtf

class SumOfSquaresOperation(t2tp.Operation):
    def __init__(self, x, dim):
        super().__init__([x], name="sum_of_squares")
        self._dim = dim
        self._outputs = [mtf.Tensor(self, x.shape - dim, x.dtype)]

    def gradient(self, grad_ys):  # from dy, in mtf operations
        return [2.0 * self.inputs[0] * grad_ys[0]]

    def lower(self, lowering):  # on one processor, in TensorFlow
        (x,), (y,) = self.inputs, self.outputs
        addend = tf.reduce_sum(tf.square(lowering.slice(x)), x.shape.dims.index(self._dim))
        lowering.set_partial_sum(y, addend, [self._dim])

def sum_of_squares(x, dim):
    return SumOfSquaresOperation(x, dim).outputs[0]
```

* `__init__` passes the inputs and a name to `super().__init__`, and sets `_outputs`. With several
  outputs, give each its `index`: `mtf.Tensor(self, shape, dtype, index=1)`. Every tensor that the
  operation reads must be an input: the engine follows inputs to find live operations, and
  `recompute_grad` copies operations and replaces the inputs of the copies. The graph makes the name
  unique, and the name determines the operation's random numbers.
* `gradient` gets the gradients w.r.t. the outputs, and returns a list with the gradient w.r.t. each
  input, or None. An entry of `grad_ys` is None if the loss does not depend on that output. If a
  gradient built from existing operations would be slow, write a second operation for it.
* `lower` is called once for all processors: the processor's number is a `tf.Tensor`.
  `lowering.slice(x)` is the processor's slice, and `set_slice` sets the slice of an output. For a
  sum over a dimension that may be split, use `set_partial_sum`, which defers the all-reduce until
  the value is needed. For other communication see `lowering.mesh_impl(self).collectives`.
  `lowering.random_bits` returns random numbers that do not depend on the mesh.
* By default each dimension may be split. If a layout must not split some dimensions, set
  `_splittable_dims` and `_unsplittable_dims`. For finer conditions, and for other properties that
  the engine reads, see `Hooks`.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering, Relayout
from t2tp.mesh.layout import BATCH, POSITIONS, ROWS, Layout, LayoutError
from t2tp.mesh.layout_conflicts import VECTOR, check_dimensions
from t2tp.mesh.layout_text import describe


class Hooks:
    """Properties and methods of an operation that the engine reads, with their defaults.

    Attributes:
      accepts_deferred_sums: whether `lower` passes on a deferred sum without reducing it (see
        `lowering.partial_sum`), which is correct for linear operations.
      rng_dependency: a scalar 0 that is computed in the backward pass, and added to the counter of
        the operation's random numbers. `recompute_grad` sets it, so that TensorFlow cannot generate
        a mask before the backward pass and store it. An operation that uses `lowering.random_bits`
        must set the same scalar on its gradient operation.
      predicate: a boolean scalar; if it is false, the operation is not executed. Only for
        operations without outputs: see `conditional_updates`.
      joint_shape: dimensions that must not be split over the same mesh axis, though no tensor has
        all of them. None: only the shapes of inputs and outputs are checked.
      gathered_variable: name of the variable that the operation gathers, if the variable is sharded
        at rest. `to_gather` then returns the slice to gather.
      ordered_dims: the dimensions along which the order of the positions matters; None: all. Along
        any other dimension, permuted inputs give equally permuted outputs, so inputs and outputs
        may be in head-tail order (`t2tp.lowering.head_tail`).
      accepts_padding: whether dimensions may be padded (see `t2tp.mesh.storage`). True is correct
        for elementwise operations, and for operations that mask padding (with
        `lowering.masked_slice`) before they reduce a padded dimension.
      is_feature: whether the outputs are features (inputs of the program), or a microbatch's rows
        of features.
      segments: an input with the segments of rows, if the operation's kernels depend on the number
        of segments in a row.
      chooses_orders: whether `lower` chooses the orders of its inputs with
        `lowering.slice_in_order`, and sets the orders of its outputs with `lowering.orders.set`.
      matmul_flops: floating-point operations of the operation's matmuls on the whole mesh, counted
        for the forward pass only.
      dropped_dims: what happens to input dimensions that an output lacks. `summed`: the output is a
        sum over them. `kept`: their elements are only moved or chosen, not added up. Empty:
        unknown, so `exact_sums` rejects the operation.
      own_sums: with `exact_sums`: the names of dimensions that `lower` itself sums in parts. The
        engine does this for all other dimensions that are summed over.
      suits_any_slice: whether `exact_sums` allows slices that do not fill SIMD vectors. True is
        correct if each output element is a copy, a product or a sum of two elements, or if `lower`
        pads the slices.
      cost_kind: the operation's kind of work for `t2tp_plan`, one of `t2tp.step.work.KINDS`.
        `view`: the outputs are the inputs. `free`: it takes no time.
    """

    accepts_deferred_sums: bool = False
    rng_dependency: upstream.Tensor | None = None
    predicate: upstream.Tensor | None = None
    joint_shape: upstream.Shape | None = None
    gathered_variable: str | None = None
    ordered_dims: Collection[upstream.Dimension] | None = None
    accepts_padding: bool = False
    is_feature: bool = False
    segments: upstream.Tensor | None = None
    chooses_orders: bool = False
    dropped_dims: str = ""
    own_sums: Collection[str] = ()
    suits_any_slice: bool = False
    cost_kind: str = "elementwise"

    @property
    def matmul_flops(self) -> int:
        """The floating-point operations of the matmuls; see the attributes of the class."""
        return 0

    def product_sizes(self, layout: Layout) -> tuple[int, int, int, int]:
        """Returns the sizes of the matmul of an operation whose `cost_kind` is `product`.

        The sizes are: number of products in the batch, rows, columns, and elements of a sum.
        """
        raise NotImplementedError

    def unpadded_share(self, layout: Layout) -> float:
        """Returns the fraction of `product_sizes` that is not padding in the lowered program.

        `t2tp_plan` lowers few layers, and multiplies their work. Padding must not be multiplied:
        it exists only because few layers have too few matrices to share among the processors.
        """
        del layout
        return 1.0

    def slice_flops(self, layout: Layout) -> float:
        """Returns the floating-point operations that `lower` executes on one processor.

        If the result is 0, the planner multiplies `matmul_flops` by the fraction of the output in a
        slice.
        """
        del layout
        return 0.0

    def temporaries(self, layout: Layout) -> Sequence[tuple[upstream.Shape, tf.DType]]:
        """Returns shapes and dtypes of large tensors that `lower` computes and does not output."""
        del layout
        return ()

    def to_gather(self, lowering: Lowering) -> Relayout:
        """Returns the slice to gather for the only output; see `gathered_variable`."""
        raise NotImplementedError

    def is_local(self, layout: Layout) -> bool:
        """Whether `lower` needs no collectives: it only computes on this processor's slices.

        An abstract program does not lower such an operation, and uses only the output shapes.
        """
        del layout
        return False

    def head_tail_dims(self, layout: Layout) -> Sequence[upstream.Dimension]:
        """Returns the dimensions for which the operation is faster in head-tail order."""
        del layout
        return ()

    def check_layout(self, layout: Layout) -> None:
        """Checks conditions on the layout that only the operation knows.

        Raises:
          LayoutError: the operation cannot be computed with this layout.
        """


class Operation(Hooks, upstream.Operation):
    """Base class of operations with a custom lowering: see the module's guide."""


def _declared(**attributes: Any) -> Hooks:
    """Returns the hooks of an operation that is not a subclass of `Hooks`."""
    declared = Hooks()
    vars(declared).update({"accepts_padding": True, **attributes})
    return declared


_LINEAR = {"accepts_deferred_sums": True, "ordered_dims": (), "suits_any_slice": True}

# The hooks of mesh-tensorflow's own operations, where these hooks differ from the defaults.
_UPSTREAM_HOOKS: dict[type[upstream.Operation], Hooks] = {
    upstream.AddOperation: _declared(**_LINEAR),
    upstream.Assign: _declared(cost_kind="update"),
    upstream.BroadcastOperation: _declared(suits_any_slice=True, ordered_dims=()),
    upstream.Constant: _declared(suits_any_slice=True, cost_kind="free"),
    upstream.CustomGradientOperation: _declared(**_LINEAR, cost_kind="view", dropped_dims="kept"),
    upstream.Depend: _declared(**_LINEAR, cost_kind="view"),
    upstream.ops.ImportOperation: _declared(cost_kind="free"),
    upstream.ops.ImportLaidOutTensorOperation: _declared(suits_any_slice=True, cost_kind="free"),
    upstream.ops.OneHotOperation: _declared(cost_kind="gather"),
    upstream.PrintOperation: _declared(cost_kind="view"),
    upstream.RandomOperation: _declared(cost_kind="random"),
    upstream.ReduceOperation: _declared(ordered_dims=(), cost_kind="reduce", dropped_dims="summed"),
    upstream.ReshapeOperation: _declared(
        suits_any_slice=True, accepts_deferred_sums=True, cost_kind="copy", dropped_dims="kept"
    ),
    upstream.ScalarAddOperation: _declared(suits_any_slice=True, ordered_dims=()),
    upstream.ScalarMultiplyOperation: _declared(suits_any_slice=True, ordered_dims=()),
    upstream.ScalarSummaryOperation: _declared(cost_kind="view"),
    upstream.StopGradient: _declared(**_LINEAR, cost_kind="view"),
    upstream.Variable: _declared(cost_kind="copy"),
    upstream.WhileLoopOperation: _declared(
        suits_any_slice=True, accepts_deferred_sums=True, cost_kind="loop", dropped_dims="kept"
    ),
    upstream.ops.BinaryOpWithBroadcasting: _declared(suits_any_slice=True, ordered_dims=()),
    upstream.EinsumOperation: _declared(dropped_dims="summed"),
    upstream.GenericGradOperation: _declared(),
    upstream.SlicewiseOperation: _declared(),
    # These operations slice or join a dimension, and declare that it cannot be split.
    upstream.ops.ConcatOperation: _declared(),
    upstream.ops.PadOperation: _declared(),
    upstream.ops.SliceOperation: _declared(),
    upstream.ops.SplitOperation: _declared(),
    upstream.ops.StackOperation: _declared(),
    upstream.ops.UnstackOperation: _declared(),
}
_DEFAULT_HOOKS = Hooks()


def hooks(op: upstream.Operation) -> Hooks:
    """Returns an operation's hooks; for mesh-tensorflow's operations, from `_UPSTREAM_HOOKS`."""
    if isinstance(op, Hooks):
        return op
    known = (_UPSTREAM_HOOKS[base] for base in type(op).__mro__ if base in _UPSTREAM_HOOKS)
    return next(known, _DEFAULT_HOOKS)


def summed_in_parts(op: upstream.Operation, layout: Layout) -> list[upstream.Dimension]:
    """Returns the dimensions that an operation sums over in parts with `exact_sums`.

    They are in the order of `Layout.exactly_split`. Without `exact_sums` there are none.

    Raises:
      LayoutError: in three cases. It is unknown whether the operation sums over a split dimension.
        Or the layout splits the third summed dimension, or a later one. Or the layout splits
        positions, and the operation sums over positions without summing over the batch.
    """
    if not layout.exact_sums or not op.outputs:
        return []
    known = {dim.name: dim for x in op.inputs for dim in x.shape.dims}
    outputs = [y.shape.dimension_names for y in op.outputs]
    dropped = [
        known[name]
        for name in layout.exactly_split
        if name in known
        and name not in hooks(op).own_sums
        and not all(name in names for names in outputs)
    ]
    reduction = hooks(op).dropped_dims
    if isinstance(op, upstream.ReduceOperation) and op._reduction_fn_string != "SUM":
        reduction = "kept"
    if not reduction and any(layout.axis_index(dim.name) is not None for dim in dropped):
        raise LayoutError(
            f"{_with_inputs(op)}: exact_sums={layout.exact_sums}, and it adds up floats over"
            f" {dropped[0].name!r} in no fixed order ({type(op).__name__}): set exact_sums=0."
        )
    if reduction != "summed":
        return []
    if dropped and dropped[-1].name == POSITIONS:
        positions = dropped.pop()
        is_split = layout.axis_index(positions.name) is not None
        if is_split and isinstance(op, upstream.ReduceOperation) and BATCH in outputs[0]:
            dropped.insert(0, known[BATCH])  # In parts of the batch, each row has its sum.
        sums_rows = dropped and dropped[0].name == BATCH
        is_table = any(POSITIONS in names and BATCH not in names for names in outputs)
        if is_split and (is_table or not sums_rows):
            raise LayoutError(
                f"{_with_inputs(op)}: exact_sums={layout.exact_sums} cannot sum over"
                f" {POSITIONS!r} without {BATCH!r} if the layout splits {POSITIONS!r}: drop that"
                " rule, or set exact_sums=0."
            )
    for dim in dropped[2:]:
        if layout.axis_index(dim.name) is not None:
            raise LayoutError(
                f"{_with_inputs(op)}: exact_sums={layout.exact_sums} cannot sum over"
                f" {dropped[0].name!r}, {dropped[1].name!r} and {dim.name!r} if the layout splits"
                f" {dim.name!r}: drop that rule, or set exact_sums=0."
            )
    return dropped


def is_elementwise(op: upstream.Operation) -> bool:
    """Whether an operation applies a function to each element of one tensor."""
    if not isinstance(op, upstream.SlicewiseOperation) or len(op.inputs) + len(op.outputs) > 2:
        return False
    return op.inputs[0].shape == op.outputs[0].shape and not op.unsplittable_dims


def suits_any_slice(op: upstream.Operation) -> bool:
    """Whether an operation's slices need not fill SIMD vectors with `exact_sums`."""
    if isinstance(op, upstream.ReduceOperation):
        return op._reduction_fn_string != "SUM" or sums_along_rows(op)
    if isinstance(op, upstream.EinsumOperation):
        return all(dim in op.outputs[0].shape.dims for x in op.inputs for dim in x.shape.dims)
    return hooks(op).suits_any_slice or hooks(op).is_feature or is_elementwise(op)


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


def check_operation(op: upstream.Operation, layout: Layout) -> None:
    """Checks that an operation can be computed with a layout.

    Raises:
      LayoutError: the rules split or pad a dimension that the operation needs whole or unpadded, or
        they split two dimensions of one tensor over the same axis.
    """
    declared = hooks(op)
    if isinstance(op, upstream.EinsumOperation):
        dims = {dim.name: dim for x in op.inputs for dim in x.shape.dims}
        check_dimensions(layout, _with_inputs(op), dims.values())
        for x, other in (op.inputs, op.inputs[::-1]) if len(op.inputs) == 2 else ():
            check_rows(op, layout, [dim for dim in x.shape.dims if dim not in other.shape.dims])
    if declared.joint_shape is not None:
        check_dimensions(layout, _with_inputs(op), declared.joint_shape.dims)
    declared.check_layout(layout)
    summed_in_parts(op, layout)
    for x in () if declared.accepts_padding else (*op.inputs, *op.outputs):
        for dim in x.shape.dims:
            axis = layout.axis_of(dim.name)
            if axis is not None and layout.is_padded(dim):
                raise LayoutError(
                    f"{_with_inputs(op)} cannot be computed with padding, and mesh axis"
                    f" {axis.name!r} of size {axis.size} does not divide dimension {dim.name!r} of"
                    f" size {dim.size}. Choose sizes that divide, or drop the rule"
                    f" '{dim.name}:{axis.name}'."
                )
    for name in sorted(op.unsplittable_dims):
        axis = layout.axis_of(name)
        if axis is not None and axis.size > 1:
            raise LayoutError(
                f"{_with_inputs(op)} cannot be computed with dimension {name!r} split, and the"
                f" layout splits it over mesh axis {axis.name!r}. Drop the rule"
                f" '{name}:{axis.name}', or rename the dimension around this operation."
            )


def check_rows(op: upstream.Operation, layout: Layout, rows: Sequence[upstream.Dimension]) -> None:
    """With `exact_sums`, rejects a matmul of which a processor has one row.

    TensorFlow has another kernel for one row, which may round differently. `rows` are the
    dimensions that form the rows.

    Raises:
      LayoutError: a processor has only one of several rows.
    """
    is_one = math.prod(layout.slice_size(upstream.Shape(rows))) == 1
    is_slice = any(dim.size > 1 or dim.name in ROWS for dim in rows)
    if layout.exact_sums and is_one and is_slice:
        raise LayoutError(
            f"{_with_inputs(op)}: exact_sums={layout.exact_sums} needs at least two rows on each"
            f" processor, and {rows[0].name!r} has one: split fewer dimensions, or set"
            " exact_sums=0."
        )


def _with_inputs(op: upstream.Operation) -> str:
    """Names an operation and its inputs, as the subject of an error."""
    kind = type(op).__name__.removesuffix("Operation")
    inputs = " and ".join(f"{x.name.removesuffix(':0')!r} {describe(x.shape)}" for x in op.inputs)
    return f"Operation {op.name!r} ({kind}{f' of {inputs}' if inputs else ''})"
