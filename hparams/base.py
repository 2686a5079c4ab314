"""What every hparams set has: the batch, the mesh and the optimizer."""

from __future__ import annotations

from t2tp.hparam import HParams

# The largest dimension and the most layers that are allowed: more is a typing error, and would fill
# the memory before any other error came.
MAX_SIZE = 2**20
MAX_LAYERS = 10_000

BATCH_SIZE_UNITS = (
    "sequences_per_batch",
    "tokens_per_batch",
    "sequences_per_replica",
    "tokens_per_replica",
)


def base_hparams() -> HParams:
    """Parent of all sets; declares what the trainer itself reads."""
    hparams = HParams()
    add = hparams.add
    add("batch_size", 16, min=1, help="of a step; batch_size_unit says of what")
    add(
        "batch_size_unit",
        "sequences_per_batch",
        help="what batch_size counts; a sequence counts as max_length tokens",
        choices=BATCH_SIZE_UNITS,
    )
    add("max_length", 256, min=1, max=2**24, help="tokens a sequence")
    add(
        "mesh_shape",
        "",
        help="axes of the mesh and their sizes, as in data:2;model:4; empty: one device",
    )
    add("layout", "batch:data", help="dimension:axis rules, as in batch:data;d_ff:model")
    add(
        "activation_dtype",
        "float32",
        help="of activations and of products; variables stay float32",
        choices=("float32", "bfloat16", "float16"),
    )
    add(
        "microbatches",
        1,
        min=1,
        help="parts of a batch computed one after the other; the result is the whole batch's",
    )
    _declare_optimizer(hparams)
    _declare_guards(hparams)
    _declare_learning_rate(hparams)
    return hparams


def _declare_optimizer(hparams: HParams) -> None:
    add = hparams.add
    add("optimizer", "adam", help="a registered optimizer: sgd, adam, adafactor, lamb or lion")
    add("optimizer_adam_beta1", 0.9, min=0, below=1, help="of adam and lamb")
    add("optimizer_adam_beta2", 0.98, min=0, below=1, help="of adam and lamb")
    add("optimizer_adam_epsilon", 1e-9, above=0, help="of adam and lamb")
    add("optimizer_momentum", 0.0, min=0, below=1, help="of sgd")
    add("optimizer_momentum_nesterov", False, help="of sgd")
    add("optimizer_lion_beta1", 0.9, min=0, below=1, help="of the direction of a lion step")
    add("optimizer_lion_beta2", 0.99, min=0, below=1, help="of lion's average of gradients")
    add(
        "optimizer_adafactor_beta1",
        0.0,
        min=0,
        below=1,
        help="0: no average over updates, and no slots for it",
    )
    add("optimizer_adafactor_factored", True, help="row and column means for second moments")
    add(
        "optimizer_adafactor_memory_exponent",
        0.8,
        min=0,
        help="of the number of updates so far: over how many second moments are averaged",
    )
    add("optimizer_adafactor_clipping_threshold", 1.0, min=0, help="of an update's size; 0: none")
    add(
        "optimizer_adafactor_multiply_by_parameter_scale",
        True,
        help="learning rates are relative to the size of each variable",
    )
    add("weight_decay", 0.0, min=0, help="of matrices, as a share of the learning rate")
    add("weight_decay_exclude", "", help="regular expression: names of variables without decay")
    add("clip_grad_norm", 1.0, min=0, help="largest global norm of a gradient; 0: any")
    add("clip_grad_value", 0.0, min=0, help="largest element of a gradient; 0: any")
    add(
        "ema_decay",
        0.0,
        min=0,
        below=1,
        help="of averages of the weights, which evaluations read; 0: none",
    )


def _declare_guards(hparams: HParams) -> None:
    add = hparams.add
    add("skip_nonfinite_steps", False, help="leave out steps with infinities or NaNs")
    add(
        "skip_step_sigma",
        0.0,
        min=0,
        help="leave out steps whose loss or gradient norm is so many standard deviations above the"
        " mean; 0: none",
    )
    add("skip_step_window", 128, min=2, help="steps of that mean")
    add("show_movement", False, help="report parameter_norm and update_norm")


def _declare_learning_rate(hparams: HParams) -> None:
    add = hparams.add
    add("learning_rate_schedule", "constant*linear_warmup*cosine_decay", help="factors joined by *")
    add("learning_rate_constant", 1e-3, min=0, help="the factor constant")
    add("learning_rate_warmup_steps", 100, min=0, help="steps of linear_warmup and others")
    add("learning_rate_decay_steps", 0, min=0, help="0: to the end of the training")
    add(
        "learning_rate_decay_floor",
        0.0,
        min=0,
        max=1,
        help="where linear, cosine and sqrt decays end",
    )
    add(
        "learning_rate_decay_rate",
        0.5,
        above=0,
        help="of exp_decay, over learning_rate_decay_steps",
    )
    add("learning_rate_decay_staircase", False, help="exp_decay goes down in steps")
    add("learning_rate_boundaries", [], min=0, help="of piecewise: steps", type=list[int])
    add(
        "learning_rate_multiples",
        [],
        min=0,
        help="of piecewise: factors after them",
        type=list[float],
    )
