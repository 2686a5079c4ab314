"""Ranged sets: where to look for better hyperparameters; see `t2tp_tune`."""

from __future__ import annotations

from t2tp import registry
from t2tp.ranged_hparams import RangedHParams


@registry.register_ranged_hparams("basic1")
def basic_range1(ranged: RangedHParams) -> None:
    """What every set has: learning rate, warm-up, clipping, weight decay."""
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_int("learning_rate_warmup_steps", 20, 2000, scale=ranged.LOG_SCALE)
    ranged.set_categorical("clip_grad_norm", [0.0, 0.5, 1.0, 2.0])
    ranged.set_float("weight_decay", 0.0, 0.2)


@registry.register_ranged_hparams
def transformer_base_range(ranged: RangedHParams) -> None:
    """Learning rate, warm-up, Adam and dropout around those of a Transformer."""
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_discrete("learning_rate_warmup_steps", [100, 500, 1000, 2000, 4000, 8000])
    ranged.set_float("optimizer_adam_beta1", 0.85, 0.95)
    ranged.set_discrete("optimizer_adam_beta2", [0.97, 0.98, 0.99, 0.995, 0.999])
    ranged.set_float("layer_prepostprocess_dropout", 0.0, 0.3)
    ranged.set_float("weight_decay", 0.0, 0.2)
