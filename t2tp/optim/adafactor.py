"""Adafactor: Adam with factored second moments."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.building.transfer import Growth
from t2tp.hparam import HParams
from t2tp.optim.adafactor_statistics import DirectionSquaresOperation, Moments, StatisticsOperation
from t2tp.optim.optimizer import Optimizer, Target, UpdateOperation, slot, subtract

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

    def __init__(self, learning_rate: mtf.Tensor, hparams: HParams) -> None:
        """Reads `optimizer_adafactor_...`."""
        super().__init__(learning_rate, hparams)
        self._beta1 = hparams.optimizer_adafactor_beta1
        self._factored = hparams.optimizer_adafactor_factored
        self._memory_exponent = hparams.optimizer_adafactor_memory_exponent
        self._clipping_threshold = hparams.optimizer_adafactor_clipping_threshold
        self._is_relative = hparams.optimizer_adafactor_multiply_by_parameter_scale

    def rate_factor(self, role: mtf.Role, growth: Growth) -> float:
        """Raises an error: there are no transfer rules for relative updates.

        Raises:
          ValueError: always.
        """
        raise ValueError("transfer_from has rules for adam, lion, muon and sgd, not for adafactor")

    def updates(self, targets: Sequence[Target]) -> list[mtf.Operation]:
        """See the base class."""
        decay_rate = self._decay_rate(targets[0].var.mesh)
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
        if self._beta1:
            state.append(slot(var, "adafactor_m"))
        return UpdateOperation(
            "adafactor",
            state,
            [target.rate, squares.outputs[0], *squares.inputs],
            functools.partial(self._assign, moments, var.size, target.decay),
        )

    def _assign(
        self,
        moments: Moments,
        size: int,
        weight_decay: float,
        var: tf.Variable,
        *rest: tf.Variable | tf.Tensor,
    ) -> None:
        """Updates `var` and its slots; `rest` are the slots, then the operation's inputs."""
        count = len(moments.variables)
        second, rest = rest[:count], rest[count:]
        average, rest = (rest[0], rest[1:]) if self._beta1 else (None, rest)
        rate, squares, decay_rate, grad, var_squares, *sums = rest
        direction, next_second = moments.direction(second, grad, decay_rate, sums)
        for moment, value in zip(second, next_second, strict=True):
            moment.assign(value, read_value=False)
        factor = rate
        if self._is_relative:
            factor *= tf.maximum(tf.sqrt(var_squares / size), 1e-3)
        if self._clipping_threshold:
            factor /= tf.maximum(1.0, tf.sqrt(squares / size) / self._clipping_threshold)
        update = factor * direction
        if average is not None:
            update = self._beta1 * average + (1.0 - self._beta1) * update
            average.assign(update, read_value=False)
        self.shrink(var, rate, weight_decay)
        subtract(var, update)

    def _moments(self, var: mtf.Variable) -> Moments:
        """Returns the second moments of a variable, factored or full."""
        rows, columns = _two_largest(var.shape) if self._factored else (None, None)
        if rows is None or columns is None:
            return Moments(var.shape, None, (slot(var, "adafactor_v"),))
        return Moments(
            var.shape,
            (rows, columns),
            (
                slot(var, "adafactor_vr", var.shape - columns),
                slot(var, "adafactor_vc", var.shape - rows),
            ),
        )

    def _decay_rate(self, mesh: Mesh) -> mtf.Tensor:
        """Returns this update's decay of second moments, a float32 scalar; initially 0."""
        return self.of_update_number(
            mesh, lambda number: 1.0 - number**-self._memory_exponent, "adafactor_decay_rate"
        )


def _two_largest(shape: mtf.Shape) -> tuple[mtf.Dimension | None, mtf.Dimension | None]:
    """Returns the two largest dimensions, larger first, if both are large enough to factor."""
    by_size = sorted(shape.dims, key=lambda dim: -dim.size)
    if len(by_size) < 2 or by_size[1].size < _LEAST_SIZE_TO_FACTOR:
        return None, None
    return by_size[0], by_size[1]
