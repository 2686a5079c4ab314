"""Stochastic gradient descent, with or without momentum."""

from typing import Any

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.role import HEAD, MATRIX
from t2tp.building.transfer import Growth
from t2tp.hparam import HParams
from t2tp.optim.optimizer import Optimizer, subtract, subtract_scaled


@registry.register_optimizer
class Sgd(Optimizer):
    """Gradient descent, with momentum if `optimizer_momentum` is above 0.

    `v = momentum * v - rate * gradient; variable += v`. Without momentum there are no slots.
    With Nesterov's momentum, the second assignment is `variable += momentum * v - rate * gradient`
    (I. Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013,
    as Keras and TensorFlow write it).
    """

    name = "sgd"

    def __init__(self, learning_rate: mtf.Tensor, hparams: HParams) -> None:
        """Reads `optimizer_momentum` and `optimizer_momentum_nesterov`.

        Raises:
          ValueError: `optimizer_momentum_nesterov` is set without momentum.
        """
        super().__init__(learning_rate, hparams)
        if hparams.optimizer_momentum:
            self.slots = ("momentum",)
        elif hparams.optimizer_momentum_nesterov:
            raise ValueError(
                "optimizer_momentum_nesterov needs momentum, and optimizer_momentum is 0: set it,"
                " to 0.9 for instance"
            )

    def rate_factor(self, role: mtf.Role, growth: Growth) -> float:
        """See the base class. These are the rules for SGD in arXiv:2203.03466, table 3."""
        if role.kind in (MATRIX, HEAD):
            return growth.outputs / growth.inputs
        return growth.outputs

    def move(self, rate: tf.Tensor, var: tf.Variable, *state: Any) -> None:
        """See the base class."""
        *velocities, grad = state
        momentum = self.hparams.optimizer_momentum
        nesterov = self.hparams.optimizer_momentum_nesterov
        if not velocities:
            return subtract_scaled(var, rate, grad)
        (velocity,) = velocities
        if var.dtype == tf.float32:
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=var.handle,
                accum=velocity.handle,
                lr=rate,
                grad=grad,
                momentum=momentum,
                use_nesterov=nesterov,
            )
            return
        moved = momentum * velocity - rate * grad
        velocity.assign(moved, read_value=False)
        subtract(var, rate * grad - momentum * moved if nesterov else -moved)
