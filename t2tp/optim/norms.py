"""Norms of the variables and of a step's update."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import count_of_stages
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.optim.clipping import global_norm
from t2tp.optim.optimizer import variable_slice


class UpdateNorm:
    """The norm of the variables before a step, and the norm of their change by the step."""

    def __init__(self, variables: Sequence[mtf.Variable]) -> None:
        """Takes a snapshot of the variables. Call this before creating their updates."""
        self._variables = list(variables)
        self._before = SnapshotOperation(self._variables).outputs
        self.parameter_norm = self._norm(self._before)

    def update_norm(self) -> mtf.Tensor:
        """Returns the norm of the change, a float32 scalar. Create the updates before."""
        after = SnapshotOperation(self._variables).outputs
        return self._norm(
            [
                mtf.slicewise(
                    _wide_difference,
                    [now, then],
                    output_dtype=tf.float32,
                    splittable_dims=now.shape.dims,
                    name="change",
                )
                for now, then in zip(after, self._before, strict=True)
            ]
        )

    def _norm(self, tensors: Sequence[mtf.Tensor]) -> mtf.Tensor:
        return global_norm(tensors, [count_of_stages(var) for var in self._variables])


def _wide_difference(now: tf.Tensor, then: tf.Tensor) -> tf.Tensor:
    return tf.cast(now, tf.float32) - tf.cast(then, tf.float32)


class SnapshotOperation(Operation):
    """Outputs the values of variables at this point of the step, in their slice dtype."""

    accepts_padding = True
    dropped_dims = "kept"

    def __init__(self, variables: list[mtf.Variable]) -> None:
        super().__init__([var.value for var in variables], name="snapshot")
        self._variables = variables
        self._outputs = [
            mtf.Tensor(self, var.shape, var.slice_dtype, index=i) for i, var in enumerate(variables)
        ]

    def lower(self, lowering: Lowering) -> None:
        for var, output in zip(self._variables, self.outputs, strict=True):
            lowering.set_slice(output, variable_slice(lowering, var).read_value())
