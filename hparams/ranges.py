"""Ranged sets: search spaces for `t2tp_tune`."""

from t2tp import registry
from t2tp.ranged_hparams import RangedHParams


@registry.register_ranged_hparams("basic1")
def basic_range1(ranged: RangedHParams) -> None:
    """Ranges for every set: learning rate, warm-up, clipping, weight decay."""
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_int("learning_rate_warmup_steps", 20, 2000, scale=ranged.LOG_SCALE)
    ranged.set_categorical("clip_grad_norm", [0.0, 0.5, 1.0, 2.0])
    ranged.set_float("weight_decay", 0.0, 0.2)


@registry.register_ranged_hparams
def transformer_base_range(ranged: RangedHParams) -> None:
    """Learning rate, warm-up, Adam and dropout around a Transformer's values."""
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_discrete("learning_rate_warmup_steps", [100, 500, 1000, 2000, 4000, 8000])
    ranged.set_float("optimizer_adam_beta1", 0.85, 0.95)
    ranged.set_discrete("optimizer_adam_beta2", [0.97, 0.98, 0.99, 0.995, 0.999])
    ranged.set_float("layer_prepostprocess_dropout", 0.0, 0.3)
    ranged.set_float("weight_decay", 0.0, 0.2)


@registry.register_ranged_hparams
def transformer_moe_range(ranged: RangedHParams) -> None:
    """Routing of experts, learning rate and warm-up."""
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_discrete("learning_rate_warmup_steps", [100, 500, 1000, 2000, 4000, 8000])
    ranged.set_discrete("num_experts", [8, 16, 32, 64])
    ranged.set_discrete("moe_every", [1, 2])
    ranged.set_discrete("moe_capacity_factor_train", [1.0, 1.25, 1.5, 2.0])
    ranged.set_float("moe_load_balance_loss", 1e-3, 1e-1, scale=ranged.LOG_SCALE)
    ranged.set_float("moe_router_z_loss", 1e-4, 1e-2, scale=ranged.LOG_SCALE)


@registry.register_ranged_hparams
def adafactor_range(ranged: RangedHParams) -> None:
    """Ranges for Adafactor with 1 / sqrt(step): warm-up, memory, dropout.

    For sets such as `mtf_transformer_base`.
    """
    ranged.set_discrete("learning_rate_warmup_steps", [1000, 2000, 5000, 10_000, 20_000])
    ranged.set_discrete("optimizer_adafactor_beta1", [0.0, 0.9])
    ranged.set_float("optimizer_adafactor_memory_exponent", 0.6, 0.9)
    ranged.set_discrete("optimizer_adafactor_clipping_threshold", [0.5, 1.0, 2.0])
    ranged.set_float("layer_prepostprocess_dropout", 0.0, 0.3)


@registry.register_ranged_hparams
def mtf_image_transformer_range(ranged: RangedHParams) -> None:
    """Learning rate, warm-up, Adam and dropout around an image transformer's values."""
    ranged.set_float("learning_rate_constant", 1e-4, 5e-3, scale=ranged.LOG_SCALE)
    ranged.set_int("learning_rate_warmup_steps", 100, 16_000, scale=ranged.LOG_SCALE)
    ranged.set_discrete("optimizer_adam_beta2", [0.97, 0.98, 0.99, 0.995, 0.999])
    ranged.set_float("layer_prepostprocess_dropout", 0.0, 0.4)


@registry.register_ranged_hparams
def image_classifier_range(ranged: RangedHParams) -> None:
    """Learning rate, weight decay, dropout and label smoothing of `vit` and `mlp`."""
    ranged.set_float("learning_rate_constant", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_float("weight_decay", 1e-3, 0.3, scale=ranged.LOG_SCALE)
    ranged.set_float("dropout", 0.0, 0.3)
    ranged.set_discrete("label_smoothing", [0.0, 0.1])


@registry.register_ranged_hparams
def mtf_resnet_range(ranged: RangedHParams) -> None:
    """Learning rate, momentum, weight decay and label smoothing of residual networks."""
    ranged.set_float("learning_rate_constant", 1e-3, 1.0, scale=ranged.LOG_SCALE)
    ranged.set_discrete("optimizer_momentum", [0.8, 0.9, 0.95])
    ranged.set_float("weight_decay", 1e-5, 1e-3, scale=ranged.LOG_SCALE)
    ranged.set_discrete("label_smoothing", [0.0, 0.1])
