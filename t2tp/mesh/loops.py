"""While loops: the body is lowered once, into TensorFlow's own while loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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

    def bind(placeholders: list[mtf.Tensor], values: tuple[tf.Tensor, ...]) -> None:
        for placeholder, value in zip(placeholders, values, strict=True):
            lowering.set_slice(placeholder, value)

    def condition(iteration: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
        with inside(iteration):
            bind(op._cond_inputs, values[:num_inputs])
            lowering.lower_operations(op._cond_ops, [op._cond_output])
            return lowering.slice(op._cond_output)

    def body(iteration: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        with inside(iteration):
            bind(op._body_inputs, values[:num_inputs])
            lowering.lower_operations(op._body_ops, op._body_outputs)
            results = [lowering.slice(tensor) for tensor in op._body_outputs[:num_inputs]]
            summed_axes.clear()
            for tensor, so_far in zip(accumulators, values[num_inputs:], strict=True):
                part, axes = lowering.partial_sum(tensor)
                summed_axes.append(axes)
                results.append(so_far + part)
            return [iteration + 1, *results]

    start = [lowering.slice(tensor) for tensor in op.inputs]
    mesh_impl = lowering.mesh_impl(op)
    start += [tf.zeros(mesh_impl.slice_shape(t.shape), t.dtype) for t in accumulators]
    # Collectives of two iterations must not run at the same time: they have one key.
    kwargs = {**op._tf_kwargs, "parallel_iterations": 1}
    kwargs.pop("back_prop", None)
    _, *results = tf.while_loop(condition, body, [tf.constant(0, tf.int64), *start], **kwargs)
    axes: list[list[int]] = [[]] * num_inputs + summed_axes
    for output, value, summed in zip(op.outputs, results, axes, strict=True):
        lowering.set_sum_over_axes(output, value, summed)


def _reduce_what_comes_from_outside(op: mtf.WhileLoopOperation, lowering: Lowering) -> None:
    """Reduces the sums that the loop uses before it begins, instead of in each iteration."""
    used = [tensor for inner in (*op._cond_ops, *op._body_ops) for tensor in inner.inputs]
    for tensor in (*used, op._cond_output, *op._body_outputs):
        if isinstance(lowering.tensors.get(tensor), mtf.LazyAllreduceSum):
            lowering.slice(tensor)
