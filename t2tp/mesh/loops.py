"""While loops: the body is lowered once, into TensorFlow's own while loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def lower_while_loop(
    op: mtf.WhileLoopOperation,
    lowering: Lowering,
    inside: Callable[[tf.Tensor], contextlib.AbstractContextManager] | None = None,
) -> None:
    """Lowers a while loop.

    A loop variable is reduced over the mesh before the next iteration sees it. An accumulator (an
    output of the body that is no loop variable) is summed over the iterations first, and reduced
    over the mesh once, after the loop.

    Of a condition with dimensions each processor asks its own slice: those with other slices may
    leave the loop at another time, unless the body has collectives with them.

    Args:
      op: the loop.
      lowering: of the graph.
      inside: called with the number of the iteration, an int64 scalar, for what is active while the
        condition and the body are lowered; by default `lowering.inside_loop`.
    """
    inside = inside or lowering.inside_loop
    num_inputs = len(op.inputs)
    accumulators = op._body_outputs[num_inputs:]
    _reduce_what_comes_from_outside(op, lowering)
    summed_axes: list[list[int]] = []
    mesh_impl = lowering.mesh_impl(op)
    asking = _Condition(op, lowering)

    def condition(iteration: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
        if asking.has_rows:
            return values[-1]
        with inside(iteration):
            return asking.of(values)

    def body(iteration: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        before = len(mesh_impl.collectives.log)
        with inside(iteration):
            _bind(op._body_inputs, values, lowering)
            lowering.lower_operations(op._body_ops, op._body_outputs)
            results = [lowering.slice(tensor) for tensor in op._body_outputs[:num_inputs]]
            summed_axes.clear()
            for tensor, so_far in zip(accumulators, values[num_inputs:], strict=False):
                part, axes = lowering.partial_sum(tensor)
                summed_axes.append(axes)
                results.append(so_far + part)
        if asking.has_rows:
            with inside(iteration + 1):
                here = asking.of(results)
            met = {axis for each in mesh_impl.collectives.log[before:] for axis in each.axes}
            results.append(asking.agreed(here, met))
        return [iteration + 1, *results]

    start = [lowering.slice(tensor) for tensor in op.inputs]
    start += [tf.zeros(mesh_impl.slice_shape(t.shape), t.dtype) for t in accumulators]
    first = tf.constant(0, tf.int64)
    if asking.has_rows:
        with inside(first):  # Which collectives the body has is not known yet: all agree.
            start.append(asking.agreed(asking.of(start), mesh_impl.shape.dimension_names))
    # Collectives of two iterations must not run at the same time: they have one key.
    kwargs = {**op._tf_kwargs, "parallel_iterations": 1}
    kwargs.pop("back_prop", None)
    _, *results = tf.while_loop(condition, body, [first, *start], **kwargs)
    axes: list[list[int]] = [[]] * num_inputs + summed_axes
    for output, value, summed in zip(op.outputs, results[: len(axes)], axes, strict=True):
        lowering.set_sum_over_axes(output, value, summed)


class _Condition:
    """What a loop asks before each iteration: a boolean, or one for each row.

    Attributes:
      has_rows: whether it has dimensions: the loop goes on while any of its booleans is true. What
        is asked then is a loop variable, because it depends on the collectives of the body.
    """

    def __init__(self, op: mtf.WhileLoopOperation, lowering: Lowering) -> None:
        """Of a loop."""
        self._op = op
        self._lowering = lowering
        self._mesh_impl = lowering.mesh_impl(op)
        self.has_rows = bool(op._cond_output.shape.dims)

    def of(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """The answer for some values of the loop variables, of this processor's rows."""
        op = self._op
        _bind(op._cond_inputs, values, self._lowering)
        self._lowering.lower_operations(op._cond_ops, [op._cond_output])
        answer = self._lowering.slice(op._cond_output)
        return tf.reduce_any(answer) if self.has_rows else answer

    def agreed(self, answer: tf.Tensor, axes: Iterable[str]) -> tf.Tensor:
        """The answer of all processors that differ only along some mesh axes."""
        split = self._mesh_impl.tensor_layout(self._op._cond_output.shape)
        names = self._mesh_impl.shape.dimension_names
        if self._mesh_impl.leaves_loops_together:
            axes = names
        chosen = [axis for axis in split if axis is not None and names[axis] in axes]
        collectives = self._mesh_impl.collectives
        return collectives.allreduce(tf.cast(answer, tf.int32), chosen, "Max") > 0


def _bind(
    placeholders: Sequence[mtf.Tensor], values: Sequence[tf.Tensor], lowering: Lowering
) -> None:
    """Says what a loop's placeholders are, the first of the values."""
    for placeholder, value in zip(placeholders, values, strict=False):
        lowering.set_slice(placeholder, value)


def _reduce_what_comes_from_outside(op: mtf.WhileLoopOperation, lowering: Lowering) -> None:
    """Reduces the sums that the loop uses before it begins, instead of in each iteration."""
    used = [tensor for inner in (*op._cond_ops, *op._body_ops) for tensor in inner.inputs]
    for tensor in (*used, op._cond_output, *op._body_outputs):
        if isinstance(lowering.tensors.get(tensor), mtf.LazyAllreduceSum):
            lowering.slice(tensor)
