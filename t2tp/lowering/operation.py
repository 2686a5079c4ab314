"""Operations: their signature, their gradient, and their lowering for a processor.

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
from t2tp.lowering.signature import DROPPED, Signature

class SumOfSquaresOperation(t2tp.Operation):
    signature = Signature(summed=DROPPED, pads=True)

    def __init__(self, x, dim):
        super().__init__([x], name="sum_of_squares")
        self._dim = dim
        self.set_outputs((x.shape - dim, x.dtype))

    def gradient(self, grad_ys):  # from dy, in mtf operations
        return [2.0 * self.inputs[0] * grad_ys[0]]

    def lower(self, lowering):  # on one processor, in TensorFlow
        (x,), (y,) = self.inputs, self.outputs
        squares = tf.square(lowering.masked_slice(x))
        addend = tf.reduce_sum(squares, x.shape.dims.index(self._dim))
        lowering.set_partial_sum(y, addend, [self._dim])

def sum_of_squares(x, dim):
    return SumOfSquaresOperation(x, dim).outputs[0]
```

* `signature` says what the operation does along each dimension. The engine derives from it whether
  a layout may split or pad the dimension, and what `exact_sums`, reports and plans need to know.
  See `t2tp.lowering.signature`.
* `__init__` passes the inputs and a name to `super().__init__`, and calls `set_outputs` with the
  shape and dtype of each output, or with a tensor that has them. Every tensor that the operation
  reads must be an input: the engine follows inputs to find live operations, and `recompute_grad`
  copies operations and replaces the inputs of the copies. The graph makes the name unique, and the
  name determines the operation's random numbers.
* `gradient` gets the gradients w.r.t. the outputs, and returns a list with the gradient w.r.t. each
  input, or None. An entry of `grad_ys` is None if the loss does not depend on that output. If a
  gradient built from existing operations would be slow, write a `GradientOperation` for it.
* `lower` is called once for all processors: the processor's number is a `tf.Tensor`.
  `lowering.slice(x)` is the processor's slice, and `set_slice` sets the slice of an output. For a
  sum over a dimension that may be split, use `set_partial_sum`, which defers the all-reduce until
  the value is needed. For other communication see `lowering.mesh_impl(self).collectives`.
  `lowering.random_bits` returns random numbers that do not depend on the mesh.
* For conditions on the layout, and for other properties that the engine reads, see `Hooks`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering, Relayout
from t2tp.lowering.signature import ALL, DROPPED, Signature, has, upstream_signature
from t2tp.mesh.dimensions import BATCH, POSITIONS, declared
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.layout_conflicts import check_dimensions
from t2tp.mesh.layout_text import describe

# Costs of operations that pass on their inputs or contain other operations.
_WITHOUT_WORK = ("view", "free", "loop")


class Hooks:
    """Properties and methods of an operation that the engine reads, with their defaults.

    Attributes:
      signature: what the operation does along each dimension, set in the class or in `__init__`.
        None: the signature of its base class in mesh-tensorflow, or `UNDECLARED`.
      rng_dependency: a scalar 0 that is computed in the backward pass, and added to the counter of
        the operation's random numbers. `recompute_grad` sets it, so that TensorFlow cannot generate
        a mask before the backward pass and store it. An operation that uses `lowering.random_bits`
        must set the same scalar on its gradient operation.
      predicate: a boolean scalar; if it is false, the operation is not executed. Only for
        assignments that are built after the operation that computes the predicate.
      gathered_variable: name of the variable that the operation gathers, if the variable is sharded
        at rest. `to_gather` then returns the slice to gather.
      is_feature: whether the outputs are features (inputs of the program), or a microbatch's rows
        of features.
      segments: an input with the segments of rows, if the operation's kernels depend on the number
        of segments in a row.
      chooses_orders: whether `lower` chooses the orders of its inputs with
        `lowering.slice_in_order`, and sets the orders of its outputs with `lowering.orders.set`.
      matmul_flops: floating-point operations of the operation's matmuls on the whole mesh, counted
        for the forward pass only.
    """

    signature: Signature | None = None
    rng_dependency: upstream.Tensor | None = None
    predicate: upstream.Tensor | None = None
    gathered_variable: str | None = None
    is_feature: bool = False
    segments: upstream.Tensor | None = None
    chooses_orders: bool = False

    @property
    def matmul_flops(self) -> int:
        """The floating-point operations of the matmuls; see the attributes of the class."""
        return 0

    def product_sizes(self, layout: Layout) -> tuple[int, int, int, int]:
        """Returns the sizes of the matmul of an operation with the cost `product`.

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

        Its outputs may be deferred sums. An abstract program does not lower such an operation, and
        uses only the output shapes, and the signature's `summed` dimensions. Override this if a
        split dimension that is neither element-wise nor summed needs no collectives either.
        """
        return self.signature is not None and needs_no_collectives(self, layout)

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

    @property
    def unsplittable_dims(self) -> frozenset[str]:
        """Names of the dimensions that no layout may split."""
        whole = self.signature.whole if self.signature else ()
        return self._unsplittable_dims | {dim.name for dim in whole}

    @property
    def splittable_dims(self) -> frozenset[str]:
        """Names of the dimensions that a layout may split."""
        return frozenset(dim.name for dim in dims_of(self)) - self.unsplittable_dims

    def set_outputs(self, *outputs: upstream.Tensor | tuple[upstream.Shape, tf.DType]) -> None:
        """Creates the outputs, each from a shape and a dtype, or like a given tensor."""
        kinds = [(x.shape, x.dtype) if isinstance(x, upstream.Tensor) else x for x in outputs]
        self._outputs = [upstream.Tensor(self, *kind, index=i) for i, kind in enumerate(kinds)]


class GradientOperation(Operation):
    """Computes the gradient of another operation.

    Attributes:
      forward: the other operation, with the options of both.
    """

    def __init__(
        self,
        name: str,
        forward: Any,
        inputs: Sequence[upstream.Tensor],
        *outputs: upstream.Tensor | tuple[upstream.Shape, tf.DType],
        **signature: Any,
    ) -> None:
        """Creates the operation, with the signature of `forward` except for the given fields.

        For `outputs` see `set_outputs`.
        """
        super().__init__(list(inputs), name=name)
        self.forward = forward
        self.signature = replace(forward.signature, **signature)
        self.set_outputs(*outputs)


_DEFAULT_HOOKS = Hooks()


def hooks(op: upstream.Operation) -> Hooks:
    """Returns an operation's hooks; the defaults for mesh-tensorflow's operations."""
    return op if isinstance(op, Hooks) else _DEFAULT_HOOKS


def signature_of(op: upstream.Operation) -> Signature:
    """Returns an operation's signature; `UNDECLARED` if it has none."""
    return hooks(op).signature or upstream_signature(op)


def needs_no_collectives(op: upstream.Operation, layout: Layout) -> bool:
    """Whether an operation's signature says that it only computes on the processor's slices.

    The outputs may be deferred sums. With `exact_sums` they may not: these sums have parts.
    """
    signature = signature_of(op)
    if signature.cost in _WITHOUT_WORK:
        return False
    return all(
        layout.axis_index(dim.name) is None
        or signature.is_elementwise(op, dim, may_sum=not layout.exact_sums)
        for dim in dims_of(op)
    )


def is_local(op: upstream.Operation, layout: Layout) -> bool:
    """Returns `Hooks.is_local`, also for mesh-tensorflow's operations."""
    if isinstance(op, Hooks):
        return op.is_local(layout)
    if isinstance(op, upstream.SlicewiseOperation):
        # A user's function may have errors that only the lowering finds.
        module = getattr(op._tf_fn, "__module__", "")
        if not module.startswith("tensorflow."):
            return False
    # An operation with this order may be an assignment, or read more than its inputs.
    return signature_of(op).ordered is not ALL and needs_no_collectives(op, layout)


def dims_of(op: upstream.Operation) -> list[upstream.Dimension]:
    """Returns the dimensions of an operation's inputs and outputs."""
    return list(dict.fromkeys(dim for x in (*op.inputs, *op.outputs) for dim in x.shape.dims))


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
    signature, outputs = signature_of(op), [y.shape.dimension_names for y in op.outputs]
    known = {dim.name: dim for x in op.inputs for dim in x.shape.dims}
    lost = {
        name: dim
        for name, dim in known.items()
        if has(DROPPED, op, dim) and not has(signature.exact, op, dim)
    }
    summed = [dim for dim in lost.values() if has(signature.summed, op, dim)]
    dropped = [lost[name] for name in layout.exactly_split if lost.get(name) in summed]
    for dim in (lost if signature.combined is ALL else known).values():
        is_combined = has(signature.combined, op, dim) and dim not in summed
        is_exact = has(signature.exact, op, dim)
        if is_combined and not is_exact and layout.axis_index(dim.name) is not None:
            raise layout.inexact(
                _with_inputs(op),
                f"has no fixed order of additions over {dim.name!r} ({type(op).__name__}): drop"
                " its rule",
            )
    if dropped and dropped[-1].name == POSITIONS:
        positions = dropped.pop()
        is_split = layout.axis_index(positions.name) is not None
        if is_split and isinstance(op, upstream.ReduceOperation) and BATCH in outputs[0]:
            dropped.insert(0, known[BATCH])  # In parts of the batch, each row has its sum.
        sums_rows = dropped and dropped[0].name == BATCH
        is_table = any(POSITIONS in names and BATCH not in names for names in outputs)
        if is_split and (is_table or not sums_rows):
            raise layout.inexact(
                _with_inputs(op),
                f"cannot sum over {POSITIONS!r} without {BATCH!r} if the layout splits"
                f" {POSITIONS!r}: drop that rule",
            )
    for dim in dropped[2:]:
        if layout.axis_index(dim.name) is not None:
            raise layout.inexact(
                _with_inputs(op),
                f"cannot sum over {dropped[0].name!r}, {dropped[1].name!r} and {dim.name!r} if the"
                f" layout splits {dim.name!r}: drop that rule",
            )
    return dropped


def check_operation(op: upstream.Operation, layout: Layout) -> None:
    """Checks that an operation can be computed with a layout.

    Raises:
      LayoutError: the rules split or pad a dimension that the operation needs whole or unpadded, or
        they split two dimensions of one tensor over the same axis.
    """
    signature = signature_of(op)
    for y in op.outputs:
        # An all-reduce over the axis of a dimension that `y` lacks would mix slices of `y`, if the
        # axis also splits a dimension of `y`.
        joint = {dim.name: dim for dim in y.shape.dims}
        for dim in dims_of(op):
            reduced = signature.summed, signature.combined
            if any(dims is not ALL and has(dims, op, dim) for dims in reduced):
                joint.setdefault(dim.name, dim)
        if len(joint) > y.shape.ndims:
            check_dimensions(layout, _with_inputs(op), joint.values())
    if isinstance(op, upstream.EinsumOperation):
        for x, other in (op.inputs, op.inputs[::-1]) if len(op.inputs) == 2 else ():
            check_rows(op, layout, [dim for dim in x.shape.dims if dim not in other.shape.dims])
    hooks(op).check_layout(layout)
    summed_in_parts(op, layout)
    for dim in () if signature.pads else dims_of(op):
        axis = layout.axis_of(dim.name)
        if axis is None or not layout.is_padded(dim):
            continue
        if not signature.is_elementwise(op, dim):
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
    is_slice = any(dim.size > 1 or declared(dim.name).rows for dim in rows)
    if layout.exact_sums and is_one and is_slice:
        raise layout.inexact(
            _with_inputs(op),
            f"needs at least two rows on each processor, and {rows[0].name!r} has one: split fewer"
            " dimensions",
        )


def _with_inputs(op: upstream.Operation) -> str:
    """Names an operation and its inputs, as the subject of an error."""
    kind = type(op).__name__.removesuffix("Operation")
    inputs = " and ".join(f"{x.name.removesuffix(':0')!r} {describe(x.shape)}" for x in op.inputs)
    return f"Operation {op.name!r} ({kind}{f' of {inputs}' if inputs else ''})"
