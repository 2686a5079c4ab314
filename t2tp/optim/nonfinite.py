"""Finds the first tensor of a step that is not finite."""

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.lowering.context import Lowering
from t2tp.lowering.lowering import live_operations
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.optim.gradient_accumulation import variable_gradients


def largest_magnitudes(loss: mtf.Tensor, mesh: Mesh) -> dict[str, mtf.Tensor]:
    """Returns the largest magnitude in each tensor of a step.

    To find the cause of a bad step, run a program that returns these magnitudes, with the batch of
    the step and with the variables as they were before the step:

    ```python
    def look(mesh, features):
        return largest_magnitudes(model.loss(mesh, features, training=True).loss, mesh)

    program = Program(look, features, variables=estimator_variables, ...)
    first = first_nonfinite(program(batch, step=step))
    ```

    Args:
      loss: built as in training, the last operation of the graph.
      mesh: the program's mesh.

    Returns:
      float32 scalars by name, in the order in which a step computes the tensors:
      `variable <name>`, `activation <operation>` for tensors that the loss depends on, and
      `gradient <variable>`; infinity if an element is not finite. Tensors inside loops and
      recomputed blocks, and gradients in a pipeline, are not included.
    """
    named = step_tensors(loss, mesh)
    return dict(zip(named, LargestMagnitudesOperation([*named.values()]).outputs, strict=True))


def step_tensors(loss: mtf.Tensor, mesh: Mesh) -> dict[str, mtf.Tensor]:
    """Returns a step's floating-point tensors, as `largest_magnitudes` names and orders them."""
    graph = mesh.graph
    variables = list(graph.trainable_variables)
    forward = live_operations(graph.operations, [loss], with_effects=False)
    named = {f"variable {var.name}": var.value for var in variables}
    for op in forward:
        for x in op.outputs:
            if x.dtype.is_floating and not isinstance(op, mtf.Variable):
                named[f"activation {x.name.removesuffix(':0')}"] = x
    if mesh.layout.num_stages > 1:  # Only a pipeline's schedule computes gradients.
        return named
    grads = variable_gradients(loss, mesh)
    return named | {f"gradient {v.name}": g for v, g in zip(variables, grads, strict=True)}


def first_nonfinite(magnitudes: Mapping[str, Any]) -> str | None:
    """Returns the first name with an infinite magnitude; None if there is none."""
    return next((name for name, size in magnitudes.items() if not math.isfinite(size)), None)


class LargestMagnitudesOperation(Operation):
    """Inputs: tensors. Outputs: the largest magnitude in each, float32 scalars.

    All maxima are reduced over the mesh in one collective.
    """

    signature = Signature(combined=ALL, exact=ALL, pads=True)

    def __init__(self, tensors: list[mtf.Tensor]) -> None:
        super().__init__(tensors, name="largest_magnitudes")
        self.set_outputs(*[(mtf.Shape([]), tf.float32)] * len(tensors))

    def lower(self, lowering: Lowering) -> None:
        here = []
        for x in self.inputs:
            part = tf.abs(tf.cast(lowering.masked_slice(x), tf.float32))
            largest = tf.reduce_max(tf.where(tf.math.is_finite(part), part, math.inf))
            here.append(tf.maximum(largest, 0.0))  # The max of no elements is -infinity.
        mesh_impl = lowering.mesh_impl(self)
        axes = list(range(len(mesh_impl.shape.dims)))
        reduced = mesh_impl.collectives.allreduce(tf.stack(here), axes, "Max")
        for output, value in zip(self.outputs, tf.unstack(reduced), strict=True):
            lowering.set_slice(output, value)
