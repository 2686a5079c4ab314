"""LAMB: Adam with layer-wise learning rates."""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.ops.variables.transfer import Growth
from t2tp.optim import adam
from t2tp.optim.optimizer import Target, UpdateOperation, mesh_axes, slot, subtract, variable_slice

# Maps slices of a variable, its moments, the gradient and the powers of the betas to the update
# direction and the next moments.
DirectionFn = Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


class Lamb(adam.Adam):
    """LAMB (Y. You et al., arXiv:1904.00962, algorithm 2), with unbounded variable norms.

    Norms are global, in any layout. Variables with the same split share one all-reduce. If a
    norm is 0 the update is Adam's.
    """

    is_elementwise = False

    def rate_factor(self, role: mtf.Role, growth: Growth) -> float:
        """Refuses: there are no rules for relative updates.

        Raises:
          ValueError: always.
        """
        raise ValueError("transfer_from has rules for adam, lion, muon and sgd, not for lamb")

    def updates(self, targets: Sequence[Target]) -> list[mtf.Operation]:
        """See the base class."""
        powers = self.beta_powers(targets[0].var.mesh, self._beta1, self._beta2)
        directions = [
            DirectionNormsOperation(
                [var, slot(var, "lamb_m"), slot(var, "lamb_v")],
                [grad, *powers],
                functools.partial(self._direction, decay),
            )
            for var, grad, _, decay in targets
        ]
        # All norms are computed before the first is needed, so that they are reduced together.
        return [
            UpdateOperation(
                "lamb",
                op.variables,
                [target.rate, *op.outputs, *op.direction_inputs],
                functools.partial(self._apply, op.direction),
                is_local=True,
            )
            for target, op in zip(targets, directions, strict=True)
        ]

    def _direction(
        self,
        decay: float,
        var: tf.Variable,
        m: tf.Variable,
        v: tf.Variable,
        grad: tf.Tensor,
        power1: tf.Tensor,
        power2: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the update direction and the next moments."""
        next_m = self._beta1 * m + (1.0 - self._beta1) * grad
        next_v = self._beta2 * v + (1.0 - self._beta2) * tf.square(grad)
        root = tf.sqrt(next_v / (1.0 - power2)) + self._epsilon
        direction = next_m / (1.0 - power1) / root
        if decay:
            direction += decay * tf.cast(var, tf.float32)
        return direction, next_m, next_v

    @staticmethod
    def _apply(
        direction_of: DirectionFn,
        var: tf.Variable,
        m: tf.Variable,
        v: tf.Variable,
        rate: tf.Tensor,
        var_squares: tf.Tensor,
        direction_squares: tf.Tensor,
        *inputs: tf.Tensor,
    ) -> None:
        direction, next_m, next_v = direction_of(var, m, v, *inputs)
        m.assign(next_m, read_value=False)
        v.assign(next_v, read_value=False)
        are_above_zero = (var_squares > 0.0) & (direction_squares > 0.0)
        ratio = tf.sqrt(tf.math.divide_no_nan(var_squares, direction_squares))
        subtract(var, rate * tf.where(are_above_zero, ratio, 1.0) * direction)


class DirectionNormsOperation(Operation):
    """Computes the sums of squares of a variable and of its update direction: float32 scalars.

    Attributes:
      variables: the variable and its moments.
      direction_inputs: the other inputs of the direction.
      direction: computes it from slices, as the first of a tuple.
    """

    accepts_padding = True

    def __init__(
        self, variables: list[mtf.Variable], inputs: list[mtf.Tensor], direction: DirectionFn
    ) -> None:
        super().__init__([*inputs, *(x.value for x in variables)], name="lamb_norms")
        self.variables = variables
        self.direction_inputs = inputs
        self.direction = direction
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32, index=i) for i in range(2)]

    def lower(self, lowering: Lowering) -> None:
        var, *slots = (variable_slice(lowering, x) for x in self.variables)
        inputs = [lowering.slice(x) for x in self.direction_inputs]
        with tf.control_dependencies(inputs):  # As `UpdateOperation.lower` does.
            direction, *_ = self.direction(var, *slots, *inputs)
        axes = mesh_axes(lowering, self, self.variables[0].shape)
        for output, x in zip(self.outputs, (tf.cast(var, tf.float32), direction), strict=True):
            x = lowering.mesh_impl(self).masked(x, self.variables[0].shape)
            lowering.set_sum_over_axes(output, 2.0 * tf.nn.l2_loss(x), axes)


@registry.register_optimizer
def lamb(learning_rate: mtf.Tensor, hparams: HParams) -> Lamb:
    """LAMB, with Adam's betas and epsilon."""
    return Lamb(learning_rate, **adam.parameters(hparams))
