"""Norms of the variables and of a step's update."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.mesh.stages import count_of_stages
from t2tp.optim.clipping import sum_of_squares
from t2tp.optim.optimizer import variable_slice


class UpdateNorm:
    """The norm of variables before a step and of their change by the step.

    Attributes:
      parameter_norm: before the step, a float32 scalar.
    """

    def __init__(self, variables: Sequence[mtf.Variable]) -> None:
        """Takes a snapshot of the variables; create it before their updates."""
        self._variables = list(variables)
        self._before = SnapshotOperation(self._variables).outputs
        self.parameter_norm = self._norm(subtracted=[])

    def update_norm(self) -> mtf.Tensor:
        """Returns the norm of the change, a float32 scalar; call it after creating the updates."""
        return self._norm(subtracted=self._before)

    def _norm(self, subtracted: list[mtf.Tensor]) -> mtf.Tensor:
        return mtf.sqrt(SquaresNowOperation(self._variables, subtracted).outputs[0])


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


class SquaresNowOperation(Operation):
    """Computes the sum of squares of variables at this point of the step, a float32 scalar.

    If it has inputs, they are subtracted from the variables first.
    """

    accepts_padding = True
    dropped_dims = "kept"

    def __init__(self, variables: list[mtf.Variable], subtracted: list[mtf.Tensor]) -> None:
        super().__init__([*(var.value for var in variables), *subtracted], name="squares_now")
        self._variables = variables
        self._subtracted = subtracted
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        slices = [variable_slice(lowering, var).read_value() for var in self._variables]
        if self._subtracted:
            before = (lowering.slice(x) for x in self._subtracted)
            slices = [
                tf.cast(now, tf.float32) - tf.cast(then, tf.float32)
                for now, then in zip(slices, before, strict=True)
            ]
        shaped = [
            (var.shape, x, count_of_stages(var))
            for var, x in zip(self._variables, slices, strict=True)
        ]
        lowering.set_slice(self.outputs[0], sum_of_squares(lowering, self, shaped))
