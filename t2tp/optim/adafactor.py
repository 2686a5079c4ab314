"""Adafactor."""

from __future__ import annotations

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.optim.weight_decay import refuse_weight_decay


@registry.register_optimizer
def adafactor(learning_rate: mtf.Tensor, hparams: HParams) -> mtf.optimize.Optimizer:
    """Adafactor, second moments factored (N. Shazeer and M. Stern, arXiv:1804.04235)."""
    refuse_weight_decay(hparams)
    return mtf.optimize.AdafactorOptimizer(learning_rate=learning_rate)
