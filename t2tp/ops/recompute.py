"""Recomputation of activations in the backward pass, instead of storing them.

T. Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174).
mesh-tensorflow's `recompute_grad` stores the results of random operations, executes assignments
twice, and does not recompute the inside of a nested call.
"""

import copy
import math
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary, ref

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import Signature
from t2tp.ops.cast import cast

# Maps the gradient w.r.t. an input of a recomputed function to all gradients of that function. The
# references are weak, so that they do not keep the graph alive.
_computed_with: WeakKeyDictionary[upstream.Tensor, list[ref[upstream.Tensor]]] = WeakKeyDictionary()


def recompute_grad(
    fn: Callable[..., upstream.Tensor | tuple[upstream.Tensor, ...]],
    explicit_inputs: list[upstream.Tensor],
) -> upstream.Tensor | tuple[upstream.Tensor, ...]:
    """Calls `fn(*explicit_inputs)`, and stores only its inputs and outputs for the backward pass.

    The backward pass recomputes everything inside `fn`, with the same dropout masks. Assignments,
    prints and summaries inside are executed once. If several recomputed functions follow each
    other, they are recomputed one at a time. Each recomputation waits for the gradient w.r.t. an
    output. Otherwise TensorFlow would merge the recomputation with the forward pass as a common
    subexpression, and store the activations after all.

    Args:
      fn: returns a tensor or a tuple of tensors; its inner tensors cannot be used outside.
      explicit_inputs: the arguments. (`fn` may use other tensors too, such as variables.)
    """
    return upstream.custom_gradient(fn, _gradients_of_recomputed, explicit_inputs)


def _gradients_of_recomputed(
    explicit_inputs: list[upstream.Tensor],
    all_inputs: list[upstream.Tensor],
    forward_operations: list[upstream.Operation],
    outputs: list[upstream.Tensor],
    output_grads: list[upstream.Tensor | None],
) -> list[upstream.Tensor | None]:
    inputs = {t: t for t in all_inputs}
    first = next(dy for dy in output_grads if dy is not None)
    others = [dy for known in _computed_with.get(first, ()) if (dy := known()) is not None]
    zero = ZeroAfterOperation(first, others).outputs[0]
    for t in explicit_inputs:
        if t.dtype != tf.bool:
            inputs[t] = t + cast(zero, t.dtype)
    copies = Copies(inputs, zero)
    recomputed = copies.of_operations(forward_operations)
    grads = upstream.gradients(
        ys=[copies.of_tensor(t) for t in outputs],
        xs=list(inputs.values()),
        grad_ys=output_grads,
        operations=recomputed,
    )
    for dx in grads[: len(explicit_inputs)]:
        if dx is not None:
            _computed_with[dx] = [ref(dy) for dy in grads if dy is not None]
    # An input given twice gets its full gradient at the first position.
    grad_of = dict(zip(inputs, grads, strict=True))
    return [grad_of.pop(t, None) for t in all_inputs]


class ZeroAfterOperation(Operation):
    """Outputs a zero, float32 [], that is not available before the input.

    Adding the zero to the inputs of a recomputation delays the recomputation, and keeps TensorFlow
    from merging it with the forward pass as a common subexpression. Control dependencies would not
    suffice, because XLA ignores them.
    """

    signature = Signature(cost="free")

    def __init__(self, x: upstream.Tensor, others: Sequence[upstream.Tensor] = ()) -> None:
        """Creates the operation.

        Args:
          x: the tensor to wait for.
          others: more tensors to wait for. If `x` is a gradient of another recomputed function,
            these are the function's other gradients, such as those w.r.t. weights. If nothing
            waited for them, TensorFlow's executor would compute them last, and keep their inputs in
            memory until then. Tensors of another TensorFlow graph are ignored.
        """
        super().__init__([x], name="zero_after")
        self._others = others
        self._outputs = [upstream.Tensor(self, upstream.Shape([]), tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        part, _ = lowering.partial_sum(self.inputs[0])
        first = tf.reduce_max(tf.reshape(part, [-1])[:1])
        with tf.control_dependencies(self._computed(lowering)):
            first = tf.identity(first)
        # Nothing is above infinity, so this is 0. TensorFlow's graph optimizer does not know this,
        # and so does not replace it by a constant.
        zero = tf.cast(tf.cast(first, tf.float32) > math.inf, tf.float32)
        lowering.set_slice(self.outputs[0], zero)

    def _computed(self, lowering: Lowering) -> list[tf.Tensor]:
        """Returns this processor's partial sums of the other tensors, if computed in this graph."""
        known = [x for x in self._others if x in lowering.tensors]
        parts = [lowering.partial_sum(x)[0] for x in known]
        return [part for part in parts if part.graph is tf.compat.v1.get_default_graph()]


class Copies:
    """Copies operations of a graph with other inputs."""

    def __init__(
        self, inputs: dict[upstream.Tensor, upstream.Tensor], rng_dependency: upstream.Tensor | None
    ) -> None:
        """Stores the replacements of inputs.

        `inputs` maps inputs of the forward pass to inputs of the recomputation. `rng_dependency` is
        a zero that random operations wait for; None: they do not wait.
        """
        self._tensors = dict(inputs)
        self._operations: dict[upstream.Operation, upstream.Operation] = {}
        self._rng_dependency = rng_dependency

    def of_tensor(self, tensor: upstream.Tensor) -> upstream.Tensor:
        """Returns the copy of a tensor; the tensor itself if it comes from outside."""
        return self._tensors.get(tensor, tensor)

    def of_operations(self, operations: Sequence[upstream.Operation]) -> list[upstream.Operation]:
        """Copies operations into the graph, except for those with side effects."""
        for op in operations:
            if isinstance(op, upstream.PrintOperation | upstream.ScalarSummaryOperation):
                self._tensors[op.outputs[0]] = self.of_tensor(op.inputs[0])
            elif not isinstance(op, upstream.Variable | upstream.Assign):
                self.copy(op)
        return list(self._operations.values())

    def copy(self, op: upstream.Operation) -> upstream.Operation:
        """Copies an operation into the graph."""
        # The name keys an operation's random numbers. The copy has the same name, so its mask is
        # the same.
        new = copy.copy(op)
        new._inputs = [self.of_tensor(t) for t in op.inputs]
        new._outputs = [upstream.Tensor(new, t.shape, t.dtype, t.name) for t in op.outputs]
        # A weight gather does not wait: it runs ahead of the recomputation.
        waits = self._rng_dependency is not None and isinstance(new, Operation)
        if waits and new.gathered_variable is None:
            new.rng_dependency = self._rng_dependency
        if isinstance(op, upstream.CustomGradientOperation):
            new._explicit_inputs = [self.of_tensor(t) for t in op._explicit_inputs]
            new._all_inputs = [self.of_tensor(t) for t in op._all_inputs]
            new._fn_outputs = [self.of_tensor(t) for t in op._fn_outputs]
            new._forward_operations = [self._operations.get(o, o) for o in op._forward_operations]
        if isinstance(op, upstream.Depend):
            new._dependencies = [self.of_tensor(d) for d in op._dependencies]
        op.graph.operations.append(new)
        self._operations[op] = new
        self._tensors |= dict(zip(op.outputs, new._outputs, strict=True))
        return new

    def replace(self, tensor: upstream.Tensor, other: upstream.Tensor) -> None:
        """Makes later copies read `other` instead of `tensor`."""
        self._tensors[tensor] = self.of_tensor(other)
