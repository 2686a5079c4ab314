"""Adafactor's second moments. The variables may be split over the mesh."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.lowering.staged_sums import reduce_sum
from t2tp.optim.optimizer import mesh_axes, variable_slice

# Added to squares to avoid a division by zero (the paper's epsilon 1).
_MIN_SQUARE = 1e-30


@dataclass(frozen=True)
class Moments:
    """The second moments of a variable, factored or full.

    Attributes:
      factored: the dimensions (rows, columns) along which the moments are factored. None: the
        moments are not factored.
      variables: the slots. Factored: the means over columns [..., rows] and over rows [...,
        columns]. Otherwise: the moments [...].
    """

    shape: mtf.Shape
    factored: tuple[mtf.Dimension, mtf.Dimension] | None
    variables: tuple[mtf.Variable, ...]

    def sums(self) -> list[tuple[mtf.Shape, list[mtf.Dimension]]]:
        """Returns the shape and the reduced dimensions of each result of `partial_means`."""
        if self.factored is None:
            return []
        rows, columns = self.factored
        rest = self.shape - rows - columns
        return [
            (self.shape - columns, [columns]),
            (self.shape - rows, [rows]),
            (rest, [rows, columns]),
            (rest, [rows]),
        ]

    def partial_means(
        self, slots: Sequence[tf.Tensor], grad: tf.Tensor, mesh_impl: SpmdMeshImpl
    ) -> list[tf.Tensor]:
        """Returns this processor's partial sums of the means.

        The first three means are of the squared gradient: over columns, over rows, and over both.
        The fourth is the mean of the first slot over rows. `direction` needs the mean of the first
        slot's next value, and computes it from the last two means without another all-reduce.
        """
        if self.factored is None:
            return []
        rows, columns = self.factored

        def mean(x: tf.Tensor, shape: mtf.Shape, along: mtf.Dimension) -> tf.Tensor:
            real = mesh_impl.masked(x, shape, [along])
            return reduce_sum(real, shape.dims.index(along)) / along.size

        squares = tf.square(grad) + _MIN_SQUARE
        by_row, of_rows = mean(squares, self.shape, columns), self.shape - columns
        return [
            by_row,
            mean(squares, self.shape, rows),
            mean(by_row, of_rows, rows),
            mean(slots[0], of_rows, rows),
        ]

    def direction(
        self,
        slots: Sequence[tf.Tensor],
        grad: tf.Tensor,
        decay_rate: tf.Tensor,
        means: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the gradient divided by the root of its moments, and the slots' next values.

        `means` are the results of `partial_means`, summed over the mesh.
        """

        def moving_average(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
            return decay_rate * old + (1.0 - decay_rate) * new

        if self.factored is None:
            (moments,) = slots
            moments = moving_average(moments, tf.square(grad) + _MIN_SQUARE)
            return grad * tf.math.rsqrt(moments), [moments]
        rows, columns = self.factored
        by_row, by_column, of_all, of_slot = means
        next_rows, next_columns = (
            moving_average(slots[0], by_row),
            moving_average(slots[1], by_column),
        )
        place = (self.shape - columns).dims.index(rows)
        mean = tf.expand_dims(moving_average(of_slot, of_all), place)
        along_rows = tf.expand_dims(tf.math.rsqrt(next_rows / mean), self._axis(columns))
        along_columns = tf.expand_dims(tf.math.rsqrt(next_columns), self._axis(rows))
        return grad * along_rows * along_columns, [next_rows, next_columns]

    def _axis(self, dim: mtf.Dimension) -> int:
        return self.shape.dims.index(dim)


class StatisticsOperation(Operation):
    """Computes sums over a variable and its gradient.

    Input: the gradient, float32. Outputs, float32: the sum of the variable's squared elements, a
    scalar; and the means of `Moments.sums`.
    """

    signature = Signature(combined=ALL, pads=True)

    def __init__(self, grad: mtf.Tensor, variable: mtf.Variable, moments: Moments) -> None:
        read = [x.value for x in (variable, *moments.variables)]
        super().__init__([grad, *read], name="adafactor_statistics")
        self.variable = variable
        self.moments = moments
        shapes = [mtf.Shape([]), *(shape for shape, _ in moments.sums())]
        self.set_outputs(*((shape, tf.float32) for shape in shapes))

    def lower(self, lowering: Lowering) -> None:
        grad, var = lowering.slice(self.inputs[0]), variable_slice(lowering, self.variable)
        mesh_impl = lowering.mesh_impl(self)
        real = mesh_impl.masked(tf.cast(var, tf.float32), self.variable.shape)
        squares = 2.0 * tf.nn.l2_loss(real)
        axes = mesh_axes(lowering, self, self.variable.shape)
        lowering.set_sum_over_axes(self.outputs[0], squares, axes)
        slots = [variable_slice(lowering, x) for x in self.moments.variables]
        for output, value, (_, summed) in zip(
            self.outputs[1:],
            self.moments.partial_means(slots, grad, mesh_impl),
            self.moments.sums(),
            strict=True,
        ):
            lowering.set_partial_sum(output, value, summed)


class DirectionSquaresOperation(Operation):
    """Computes the sum of squares of a variable's update before clipping.

    Inputs: the decay rate (a scalar), the gradient, and the outputs of the statistics. Output: a
    float32 scalar.
    """

    signature = Signature(combined=ALL, pads=True)

    def __init__(self, statistics: StatisticsOperation, decay_rate: mtf.Tensor) -> None:
        grad = statistics.inputs[0]
        super().__init__([decay_rate, grad, *statistics.outputs], name="adafactor_direction")
        self.statistics = statistics
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        moments = self.statistics.moments
        slots = [variable_slice(lowering, x) for x in moments.variables]
        decay_rate, grad, _, *means = (lowering.slice(x) for x in self.inputs)
        direction, _ = moments.direction(slots, grad, decay_rate, means)
        axes = mesh_axes(lowering, self, moments.shape)
        direction = lowering.mesh_impl(self).masked(direction, moments.shape)
        lowering.set_sum_over_axes(self.outputs[0], 2.0 * tf.nn.l2_loss(direction), axes)
