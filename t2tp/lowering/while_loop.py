"""While loops: the body is lowered once, into TensorFlow's own while loop."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.deferred_sums import Scatter
from t2tp.lowering.fast_graph import fast_graph


class _LoopState(NamedTuple):
    """The state of a loop between iterations.

    Attributes:
      iteration: index of the next iteration, an int64 scalar.
      variables: the slices of the loop variables.
      sums: this processor's partial sums of the accumulators, over the iterations so far.
      goes_on: if the body decides whether there is a next iteration, a tuple with its decision (a
        boolean); otherwise an empty tuple.
    """

    iteration: tf.Tensor
    variables: list[tf.Tensor]
    sums: list[tf.Tensor]
    goes_on: tuple[tf.Tensor, ...]


def lower_while_loop(
    op: upstream.WhileLoopOperation,
    lowering: Lowering,
    inside: Callable[[tf.Tensor], contextlib.AbstractContextManager] | None = None,
    tree_size: int = 0,
) -> None:
    """Lowers a while loop.

    A loop variable is reduced over the mesh before the next iteration reads it. An accumulator (an
    output of the body that is not a loop variable) is summed over the iterations first, and reduced
    over the mesh once, after the loop.

    If the condition has dimensions, each processor evaluates it on its slice. Processors with
    different slices may leave the loop at different times, unless they share collectives in the
    body.

    `inside` is called with the index of the iteration (an int64 scalar), and returns the context in
    which to lower condition and body. Default: `lowering.inside_loop`. If accumulators are added up
    as a binary tree, `tree_size` is the number of iterations, a power of two. If it is 0, the
    accumulators are added up in order.
    """
    inside = inside or lowering.inside_loop
    num_variables = len(op.inputs)
    next_variables = op._body_outputs[:num_variables]
    accumulators = op._body_outputs[num_variables:]
    mesh_impl = lowering.mesh_impl(op)
    collectives = mesh_impl.collectives
    condition = _Condition(op, lowering)
    summed_axes: list[list[int]] = []
    reduce_what_comes_from_outside(op, lowering)

    def goes_on(state: _LoopState) -> tf.Tensor:
        if state.goes_on:
            return state.goes_on[0]
        with inside(state.iteration):
            return condition.of(state.variables)

    def body(state: _LoopState) -> list[_LoopState]:
        collectives_before = len(collectives.log)
        with fast_graph(), inside(state.iteration):
            _bind(op._body_inputs, state.variables, lowering)
            lowering.lower_operations(op._body_ops, op._body_outputs, accumulators)
            variables = [lowering.slice(tensor) for tensor in next_variables]
            addend = lowering.tree_leaf if tree_size else lowering.partial_sum
            addends = [addend(tensor) for tensor in accumulators]
            if tree_size:
                values = [x for x, _ in addends]
                sums = add_to_tree(state.iteration, state.sums, values, tree_size)
            else:
                sums = [total + x for total, (x, _) in zip(state.sums, addends, strict=True)]
        summed_axes[:] = [axes for _, axes in addends]
        decided: tuple[tf.Tensor, ...] = ()
        if condition.has_rows:
            # If a processor left the loop early, other processors that share collectives with it
            # would wait forever. The collectives' axes are known only after the body.
            with inside(state.iteration + 1):
                here = condition.of(variables)
            met = {axis for c in collectives.log[collectives_before:] for axis in c.axes}
            decided = (condition.agreed(here, met),)
        return [_LoopState(state.iteration + 1, variables, sums, decided)]

    zero = tf.constant(0, tf.int64)
    variables = [lowering.slice(tensor) for tensor in op.inputs]
    sums = [tf.zeros(mesh_impl.slice_shape(t.shape), t.dtype) for t in accumulators]
    sums *= tree_levels(tree_size)
    decided: tuple[tf.Tensor, ...] = ()
    if condition.has_rows:
        with inside(zero):  # The body's collectives are not known yet, so all processors agree.
            decided = (condition.agreed(condition.of(variables), mesh_impl.shape.dimension_names),)
    # Collectives of two iterations must not run at the same time: they share an instance key.
    kwargs = {**op._tf_kwargs, "parallel_iterations": 1}
    kwargs.pop("back_prop", None)
    start = _LoopState(zero, variables, sums, decided)
    (last,) = tf.while_loop(goes_on, body, [start], **kwargs)
    for output, value in zip(op.outputs[:num_variables], last.variables, strict=True):
        lowering.set_slice(output, value)
    totals = last.sums[: len(accumulators)]
    for output, value, axes in zip(op.outputs[num_variables:], totals, summed_axes, strict=True):
        lowering.set_sum_over_axes(output, value, axes)


def tree_levels(size: int) -> int:
    """Returns how many sums `add_to_tree` stores per tensor for a tree with `size` leaves."""
    return max(1, size.bit_length() - 1)


def add_to_tree(
    iteration: tf.Tensor, levels: list[tf.Tensor], addends: list[tf.Tensor], size: int
) -> list[tf.Tensor]:
    """Adds the next leaf to a binary tree of additions; returns the new levels.

    The levels work like the digits of a binary counter: a complete left half waits in its level
    until the right half is complete, and their sum is carried to the next level. After the last
    leaf, the first level has the totals.

    Args:
      iteration: index of the leaf.
      levels: for each level below the root, the sum of each tensor over the last complete left
        half.
      addends: the value of each tensor at this leaf.
      size: number of leaves.
    """
    count, depth = len(addends), tree_levels(size)

    def carried_to(level: int) -> list[tf.Tensor]:
        totals = addends
        for i in range(level):
            halves = levels[i * count : (i + 1) * count]
            totals = [a + b for a, b in zip(halves, totals, strict=True)]
        begin = level % depth * count
        return [*levels[:begin], *totals, *levels[begin + count :]]

    # The number of trailing ones of the leaf's binary index. For 8 leaves: 0, 1, 0, 2, 0, 1, 0, 3.
    level = tf.gather([(~n & (n + 1)).bit_length() - 1 for n in range(size)], iteration)
    return tf.switch_case(level, [lambda i=i: carried_to(i) for i in range(depth + 1)])


class _Condition:
    """The condition of a loop: a boolean scalar, or one boolean per row.

    Attributes:
      has_rows: whether there is one boolean per row. The loop then continues while any of these
        booleans is true. The condition is then evaluated after the body, whose collectives
        determine which processors must agree.
    """

    def __init__(self, op: upstream.WhileLoopOperation, lowering: Lowering) -> None:
        self._op = op
        self._lowering = lowering
        self._mesh_impl = lowering.mesh_impl(op)
        self.has_rows = bool(op._cond_output.shape.dims)

    def of(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Evaluates the condition on values of the loop variables, for this processor's rows."""
        op = self._op
        _bind(op._cond_inputs, values, self._lowering)
        self._lowering.lower_operations(op._cond_ops, [op._cond_output])
        answer = self._lowering.slice(op._cond_output)
        return tf.reduce_any(answer) if self.has_rows else answer

    def agreed(self, answer: tf.Tensor, axes: Iterable[str]) -> tf.Tensor:
        """Returns whether any processor along the given mesh axes answers true."""
        split = self._mesh_impl.tensor_layout(self._op._cond_output.shape)
        names = self._mesh_impl.shape.dimension_names
        separate = self._mesh_impl.layout.axes.separate(axis for axis in split if axis is not None)
        chosen = [axis for axis in separate if names[axis] in axes]
        collectives = self._mesh_impl.collectives
        return collectives.allreduce(tf.cast(answer, tf.int32), chosen, "Max") > 0


def _bind(
    placeholders: Sequence[upstream.Tensor], values: Sequence[tf.Tensor], lowering: Lowering
) -> None:
    """Sets a loop's placeholders to values, in order; further values are ignored."""
    for placeholder, value in zip(placeholders, values, strict=False):
        lowering.set_slice(placeholder, value)


def reduce_what_comes_from_outside(op: upstream.WhileLoopOperation, lowering: Lowering) -> None:
    """Reduces the deferred sums that a loop reads: before the loop, not in each iteration."""
    used = [tensor for inner in (*op._cond_ops, *op._body_ops) for tensor in inner.inputs]
    for tensor in (*used, op._cond_output, *op._body_outputs):
        if isinstance(lowering.tensors.get(tensor), (upstream.LazyAllreduceSum, Scatter)):
            lowering.slice(tensor)
