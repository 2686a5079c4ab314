"""Stochastic gradient descent."""

from __future__ import annotations

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.optim.weight_decay import refuse_weight_decay


@registry.register_optimizer
def sgd(learning_rate: mtf.Tensor, hparams: HParams) -> mtf.optimize.Optimizer:
    """Gradient descent, with momentum if `optimizer_momentum` is above 0."""
    refuse_weight_decay(hparams)
    if hparams.optimizer_momentum:
        return mtf.optimize.MomentumOptimizer(learning_rate, hparams.optimizer_momentum)
    return mtf.optimize.SgdOptimizer(learning_rate)
