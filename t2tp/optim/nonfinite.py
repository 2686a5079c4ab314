"""Finds the first non-finite tensor of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2tp import mtf
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.optim.gradient_accumulation import needed_operations, variable_gradients
from t2tp.optim.optimizer import mesh_axes
from t2tp.program.program import Mesh


def nonfinite_counts(loss: mtf.Tensor, mesh: Mesh) -> dict[str, mtf.Tensor]:
    """Counts the non-finite elements of each tensor of a step.

    A program that returns these counts finds the cause of a bad step, on the variables and the
    batch that the step began with:

    ```python
    def look(mesh, features):
        return nonfinite_counts(model.loss(mesh, features, training=True).loss, mesh)

    program = Program(look, features, variables=estimator_variables, ...)
    first = first_nonfinite(program(batch, step=step))
    ```

    Args:
      loss: built as in training, the last operation of the graph.
      mesh: the program's mesh.

    Returns:
      int32 scalars by name, in the order in which a step computes the tensors:
      `variable <name>`, `activation <operation>` for tensors that the loss depends on, and
      `gradient <variable>`. Tensors inside loops and recomputed blocks are not included.
    """
    graph = mesh.graph
    variables = list(graph.trainable_variables)
    forward = needed_operations(list(graph.operations), [loss])
    named = {f"variable {var.name}": var.value for var in variables}
    for op in forward:
        for x in op.outputs:
            if x.dtype.is_floating and not isinstance(op, mtf.Variable):
                named[f"activation {x.name.removesuffix(':0')}"] = x
    grads = variable_gradients(loss, mesh)
    named |= {f"gradient {v.name}": g for v, g in zip(variables, grads, strict=True)}
    return {name: CountNonfiniteOperation(x).outputs[0] for name, x in named.items()}


def first_nonfinite(counts: Mapping[str, Any]) -> str | None:
    """Returns the first name with a count above 0; None if there is none."""
    return next((name for name in counts if counts[name]), None)


class CountNonfiniteOperation(Operation):
    """Input: x. Output: the number of its non-finite elements, an int32 scalar."""

    accepts_padding = True

    def __init__(self, x: mtf.Tensor) -> None:
        super().__init__([x], name="count_nonfinite")
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.int32)]

    def lower(self, lowering: Lowering) -> None:
        (x,) = self.inputs
        bad = ~tf.math.is_finite(lowering.masked_slice(x))
        count = tf.reduce_sum(tf.cast(bad, tf.int32))
        lowering.set_sum_over_axes(self.outputs[0], count, mesh_axes(lowering, self, x.shape))
