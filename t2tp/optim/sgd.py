"""Stochastic gradient descent."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.optim.weight_decay import refuse_weight_decay


class Momentum(mtf.optimize.MomentumOptimizer):
    """Gradient descent with momentum: `v = momentum * v + rate * gradient; variable -= v`.

    mesh-tensorflow's own takes for granted that a variable, read after it was assigned to, has its
    new value.
    """

    def apply_grad(self, grad: mtf.Tensor, var: mtf.Variable) -> list[mtf.Operation]:
        """Updates one variable and its velocity."""
        velocity = mtf.get_variable(
            var.mesh,
            f"{var.name}_momentum_v",
            var.shape,
            dtype=var.dtype,
            initializer=tf1.zeros_initializer(),
            trainable=False,
        )
        moved = grad * self.lr + velocity * self.momentum
        return [mtf.assign(velocity, moved), mtf.assign_sub(var, moved)]


@registry.register_optimizer
def sgd(learning_rate: mtf.Tensor, hparams: HParams) -> mtf.optimize.Optimizer:
    """Gradient descent, with momentum if `optimizer_momentum` is above 0."""
    refuse_weight_decay(hparams)
    if hparams.optimizer_momentum:
        return Momentum(learning_rate, hparams.optimizer_momentum)
    return mtf.optimize.SgdOptimizer(learning_rate)
