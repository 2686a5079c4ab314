"""Adafactor: Adam with factored second moments."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.transfer import Growth
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.lowering.staged_sums import reduce_sum
from t2tp.optim.optimizer import Optimizer, Target, UpdateOperation, slot, subtract, variable_slice

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
        next_rows = moving_average(slots[0], by_row)
        next_columns = moving_average(slots[1], by_column)
        dims = self.shape.dims
        place = (self.shape - columns).dims.index(rows)
        mean = tf.expand_dims(moving_average(of_slot, of_all), place)
        along_rows = tf.expand_dims(tf.math.rsqrt(next_rows / mean), dims.index(columns))
        along_columns = tf.expand_dims(tf.math.rsqrt(next_columns), dims.index(rows))
        return grad * along_rows * along_columns, [next_rows, next_columns]


class StatisticsOperation(Operation):
    """Computes sums over a variable and its gradient.

    Inputs: the gradient, float32; the values of the variable and its slots. Outputs, float32: the
    sum of the variable's squared elements, a scalar; and the means of `Moments.sums`.
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
        shape = self.variable.shape
        squares = tf.nn.l2_loss(mesh_impl.masked(tf.cast(var, tf.float32), shape))
        lowering.set_partial_sum(self.outputs[0], 2.0 * squares, shape.dims)
        slots = [variable_slice(lowering, x) for x in self.moments.variables]
        means = self.moments.partial_means(slots, grad, mesh_impl)
        sums = zip(self.outputs[1:], means, self.moments.sums(), strict=True)
        for output, value, (_, summed) in sums:
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
        squares = tf.nn.l2_loss(lowering.mesh_impl(self).masked(direction, moments.shape))
        lowering.set_partial_sum(self.outputs[0], 2.0 * squares, moments.shape.dims)


# To factor a smaller dimension would save little memory, and give a worse estimate. The number is
# mesh-tensorflow's.
_LEAST_SIZE_TO_FACTOR = 128


@registry.register_optimizer
class Adafactor(Optimizer):
    """Adafactor, with a learning rate relative to the size of the weights.

    N. Shazeer and M. Stern, arXiv:1804.04235, algorithms 4 and 5. A variable with two or more
    dimensions of at least 128 is factored along its two largest dimensions, as in mesh-tensorflow.
    Along further dimensions, such as `heads` in [d_model, heads, d_kv], each index has its own row
    and column means. Means and norms are over the global variable, in any layout. Variables with
    the same split share one all-reduce.
    """

    def rate_factor(self, role: mtf.Role, growth: Growth) -> float:
        """Raises an error: there are no transfer rules for relative updates.

        Raises:
          ValueError: always.
        """
        raise ValueError("transfer_from has rules for adam, lion, muon and sgd, not for adafactor")

    def updates(self, targets: Sequence[Target]) -> list[mtf.Operation]:
        """See the base class."""
        # The decay of second moments in this update, initially 0.
        exponent = -self.hparams.optimizer_adafactor_memory_exponent
        decay_rate = self.of_update_number(
            targets[0].var.mesh, lambda number: 1.0 - number**exponent, "adafactor_decay_rate"
        )
        # Computed before the first sum is needed, so that one all-reduce can combine all sums.
        statistics = [
            StatisticsOperation(target.grad, target.var, self._moments(target.var))
            for target in targets
        ]
        squares = [DirectionSquaresOperation(op, decay_rate) for op in statistics]
        return [self._update(*each) for each in zip(targets, squares, strict=True)]

    def _update(self, target: Target, squares: DirectionSquaresOperation) -> mtf.Operation:
        moments, var = squares.statistics.moments, target.var
        state = [var, *moments.variables]
        if self.hparams.optimizer_adafactor_beta1:
            state.append(slot(var, "adafactor_m"))
        return UpdateOperation(
            "adafactor",
            state,
            [target.rate, squares.outputs[0], *squares.inputs],
            functools.partial(self._assign, moments, target.decay),
        )

    def _assign(
        self,
        moments: Moments,
        weight_decay: float,
        var: tf.Variable,
        *rest: tf.Variable | tf.Tensor,
    ) -> None:
        """Updates `var` and its slots; `rest` are the slots, then the operation's inputs."""
        count, beta1 = len(moments.variables), self.hparams.optimizer_adafactor_beta1
        second, rest = rest[:count], rest[count:]
        average, rest = (rest[0], rest[1:]) if beta1 else (None, rest)
        rate, squares, decay_rate, grad, var_squares, *sums = rest
        direction, next_second = moments.direction(second, grad, decay_rate, sums)
        for moment, value in zip(second, next_second, strict=True):
            moment.assign(value, read_value=False)
        factor, size = rate, moments.shape.size
        if self.hparams.optimizer_adafactor_multiply_by_parameter_scale:
            factor *= tf.maximum(tf.sqrt(var_squares / size), 1e-3)
        if threshold := self.hparams.optimizer_adafactor_clipping_threshold:
            factor /= tf.maximum(1.0, tf.sqrt(squares / size) / threshold)
        update = factor * direction
        if average is not None:
            update = beta1 * average + (1.0 - beta1) * update
            average.assign(update, read_value=False)
        self.shrink(var, rate, weight_decay)
        subtract(var, update)

    def _moments(self, var: mtf.Variable) -> Moments:
        """Returns the second moments of a variable, factored or full."""
        largest = sorted(var.shape.dims, key=lambda dim: -dim.size)[:2]
        is_factored = len(largest) == 2 and largest[1].size >= _LEAST_SIZE_TO_FACTOR
        if not (self.hparams.optimizer_adafactor_factored and is_factored):
            return Moments(var.shape, None, (slot(var, "adafactor_v"),))
        rows, columns = largest
        of_rows = slot(var, "adafactor_vr", var.shape - columns)
        of_columns = slot(var, "adafactor_vc", var.shape - rows)
        return Moments(var.shape, (rows, columns), (of_rows, of_columns))
