"""What every hparams set has: the batch, the mesh and the optimizer."""

from __future__ import annotations

from t2tp.hparam import HParams


def base_hparams() -> HParams:
    """Parent of all sets; declares what the trainer itself reads."""
    hparams = HParams()
    add = hparams.add
    add("batch_size", 16, help="of a step; batch_size_unit says of what")
    add(
        "batch_size_unit",
        "sequences_per_batch",
        help="sequences_per_batch, tokens_per_batch, sequences_per_replica or tokens_per_replica; a"
        " sequence counts as max_length tokens",
    )
    add("max_length", 256, help="tokens a sequence")
    add(
        "mesh_shape",
        "",
        help="axes of the mesh and their sizes, as in data:2;model:4; empty: one device",
    )
    add("layout", "batch:data", help="dimension:axis rules, as in batch:data;d_ff:model")
    add(
        "activation_dtype",
        "float32",
        help="of activations and of products: float32, bfloat16 or float16; variables stay float32",
    )
    add(
        "microbatches",
        1,
        help="parts of a batch computed one after the other; the result is the whole batch's",
    )
    add("optimizer", "adam", help="a registered optimizer: sgd, adam, adafactor, lamb or lion")
    add("optimizer_adam_beta1", 0.9, help="of adam and lamb")
    add("optimizer_adam_beta2", 0.98, help="of adam and lamb")
    add("optimizer_adam_epsilon", 1e-9, help="of adam and lamb")
    add("optimizer_momentum", 0.0, help="of sgd")
    add("optimizer_momentum_nesterov", False, help="of sgd")
    add("optimizer_lion_beta1", 0.9)
    add("optimizer_lion_beta2", 0.99)
    add("optimizer_adafactor_beta1", 0.0, help="0: no average over updates, and no slots for it")
    add("optimizer_adafactor_factored", True, help="row and column means for second moments")
    add("optimizer_adafactor_memory_exponent", 0.8, help="of the step, that moments last")
    add("optimizer_adafactor_clipping_threshold", 1.0, help="of an update's size; 0: none")
    add(
        "optimizer_adafactor_multiply_by_parameter_scale",
        True,
        help="learning rates are relative to the size of each variable",
    )
    add("weight_decay", 0.0, help="of matrices, as a share of the learning rate")
    add("weight_decay_exclude", "", help="regular expression: names of variables without decay")
    add("clip_grad_norm", 1.0, help="largest global norm of a gradient; 0: any")
    add("clip_grad_value", 0.0, help="largest element of a gradient; 0: any")
    add("ema_decay", 0.0, help="of averages of the weights, which evaluations read; 0: none")
    add("skip_nonfinite_steps", False, help="leave out steps with infinities or NaNs")
    add(
        "skip_step_sigma",
        0.0,
        help="leave out steps whose loss or gradient norm is so many standard deviations above the"
        " mean; 0: none",
    )
    add("skip_step_window", 128, help="steps of that mean")
    add("show_movement", False, help="report parameter_norm and update_norm")
    add("learning_rate_schedule", "constant*linear_warmup*cosine_decay", help="factors joined by *")
    add("learning_rate_constant", 1e-3)
    add("learning_rate_warmup_steps", 100)
    add("learning_rate_decay_steps", 0, help="0: to the end of the training")
    add("learning_rate_decay_floor", 0.0, help="where linear, cosine and sqrt decays end")
    add("learning_rate_decay_rate", 0.5, help="of exp_decay, over learning_rate_decay_steps")
    add("learning_rate_decay_staircase", False, help="exp_decay goes down in steps")
    add("learning_rate_boundaries", [], help="of piecewise: steps", type=list[int])
    add("learning_rate_multiples", [], help="of piecewise: factors after them", type=list[float])
    return hparams
