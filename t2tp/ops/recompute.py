"""Activations that are computed a second time in the backward pass, instead of kept.

T. Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174).
mesh-tensorflow's `recompute_grad` keeps what random operations drew, carries out assignments twice,
and takes the inside of a nested one from the first pass.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def recompute_grad(
    fn: Callable[..., mtf.Tensor | tuple[mtf.Tensor, ...]],
    explicit_inputs: list[mtf.Tensor],
    control_dependencies: bool = True,
) -> mtf.Tensor | tuple[mtf.Tensor, ...]:
    """`fn(*explicit_inputs)`, of which only the inputs and outputs are kept for the backward pass.

    There everything inside is computed again, dropout masks too (the same ones). Assignments,
    prints and summaries inside are carried out once.

    Args:
      fn: returns a tensor or a tuple of tensors; its inner tensors cannot be used outside.
      explicit_inputs: what it is called with. (It may use other tensors, such as variables.)
      control_dependencies: compute again only when the gradient by an output is there. Without this
        TensorFlow finds that the same was computed before, and keeps it after all.
    """

    def grad_fn(**kwargs: list) -> list[mtf.Tensor | None]:
        return _gradients_of_recomputed(**kwargs, wait=control_dependencies)

    return mtf.custom_gradient(fn, grad_fn, explicit_inputs)


def _gradients_of_recomputed(
    explicit_inputs: list[mtf.Tensor],
    all_inputs: list[mtf.Tensor],
    forward_operations: list[mtf.Operation],
    outputs: list[mtf.Tensor],
    output_grads: list[mtf.Tensor | None],
    wait: bool,
) -> list[mtf.Tensor | None]:
    inputs = {t: t for t in all_inputs}
    zero = None
    if wait:
        first = next(dy for dy in output_grads if dy is not None)
        zero = ZeroAfterOperation(first).outputs[0]
        for t in explicit_inputs:
            if t.dtype != tf.bool:
                inputs[t] = t + mtf.cast(zero, t.dtype)
    copies = _Copies(inputs, zero)
    recomputed = copies.of_operations(forward_operations)
    grads = mtf.gradients(
        ys=[copies.of_tensor(t) for t in outputs],
        xs=list(inputs.values()),
        grad_ys=output_grads,
        operations=recomputed,
    )
    # An input given twice: the gradient by both is the gradient by the first.
    grad_of = dict(zip(inputs, grads, strict=True))
    return [grad_of.pop(t, None) for t in all_inputs]


class ZeroAfterOperation(mtf.Operation):
    """A zero, float32 [], that is known only when the input is.

    What adds it to its inputs has to wait, and is not found to have been computed before. Control
    dependencies would not do: XLA knows none.
    """

    def __init__(self, x: mtf.Tensor) -> None:
        super().__init__([x], name="zero_after")
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        part, _ = lowering.partial_sum(self.inputs[0])
        first = tf.reduce_max(tf.reshape(part, [-1])[:1])
        # Nothing is above infinity; the optimizer does not look into that.
        zero = tf.cast(tf.cast(first, tf.float32) > math.inf, tf.float32)
        lowering.set_slice(self.outputs[0], zero)


class _Copies:
    """Operations of a graph once more, on other inputs."""

    def __init__(self, inputs: dict[mtf.Tensor, mtf.Tensor], draw_after: mtf.Tensor | None) -> None:
        """Starts without any.

        Args:
          inputs: from those of the first pass to those of the second.
          draw_after: a zero that random operations have to wait for.
        """
        self._tensors = dict(inputs)
        self._operations: dict[mtf.Operation, mtf.Operation] = {}
        self._draw_after = draw_after

    def of_tensor(self, tensor: mtf.Tensor) -> mtf.Tensor:
        """The copy of a tensor; itself, if it comes from outside."""
        return self._tensors.get(tensor, tensor)

    def of_operations(self, operations: Sequence[mtf.Operation]) -> list[mtf.Operation]:
        """Copies operations, which come into the graph. Those with effects are left out."""
        for op in operations:
            if isinstance(op, mtf.PrintOperation | mtf.ScalarSummaryOperation):
                self._tensors[op.outputs[0]] = self.of_tensor(op.inputs[0])
            elif not isinstance(op, mtf.Variable | mtf.Assign):
                self._copy(op)
        return list(self._operations.values())

    def _copy(self, op: mtf.Operation) -> None:
        # Its name stays, and random numbers are drawn by the name.
        new = copy.copy(op)
        new._inputs = [self.of_tensor(t) for t in op.inputs]
        new._outputs = [mtf.Tensor(new, t.shape, t.dtype, t.name) for t in op.outputs]
        new.draw_after = self._draw_after
        if isinstance(op, mtf.CustomGradientOperation):
            new._explicit_inputs = [self.of_tensor(t) for t in op._explicit_inputs]
            new._all_inputs = [self.of_tensor(t) for t in op._all_inputs]
            new._fn_outputs = [self.of_tensor(t) for t in op._fn_outputs]
            new._forward_operations = [self._operations.get(o, o) for o in op._forward_operations]
        if isinstance(op, mtf.Depend):
            new._dependencies = [self.of_tensor(d) for d in op._dependencies]
        op.graph.operations.append(new)
        self._operations[op] = new
        self._tensors |= dict(zip(op.outputs, new._outputs, strict=True))
