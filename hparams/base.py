"""The hyperparameters of every set: batch, mesh, optimizer, learning rate."""

from __future__ import annotations

from t2tp.choices import ADAPTED, BATCH_SIZE_UNITS, PRECISIONS
from t2tp.hparam import HParams

# Upper bounds of dimensions and layers: a typo above them would fill the memory before any error
# is raised.
MAX_SIZE = 2**20
MAX_LAYERS = 10_000


def base_hparams() -> HParams:
    """Parent of all sets: declares the hyperparameters of the trainer."""
    hparams = HParams()
    add = hparams.add
    add("batch_size", 16, min=1, help="examples or tokens per step, as batch_size_unit says")
    add(
        "batch_size_unit",
        "sequences_per_batch",
        help="what batch_size counts; a sequence counts as max_length tokens",
        choices=BATCH_SIZE_UNITS,
    )
    add("max_length", 256, min=1, max=2**24, help="tokens per sequence")
    add(
        "mesh_shape",
        "",
        help="axes of the mesh and their sizes, as in data:2;model:4; empty: one device",
    )
    add("layout", "batch:data", help="dimension:axis rules, as in batch:data;d_ff:model")
    add(
        "zero_stage",
        0,
        min=0,
        max=3,
        help="what is sharded at rest over the axes that split the batch: 1: optimizer state, 2:"
        " gradients too, 3: weights too (ZeRO, FSDP)",
    )
    add("zero_axes", "", help="axes that shard at rest, as in pod+data; empty: those of the batch")
    add(
        "storage_layout",
        "",
        help="dimension:axis rules of variables at rest; empty: the first free dimension of each",
    )
    add("zero_prefetch", 1, min=0, help="layers that gathers run ahead in stage 3")
    add(
        "pipeline_schedule",
        "1f1b",
        help="order of forward and backward passes if layout splits the layers: gpipe, 1f1b,"
        " interleaved, zero_bubble, or a .csv file",
    )
    add("pipeline_chunks", 1, min=1, help="separate chunks of layers of each stage")
    add(
        "pipeline_layers",
        "",
        help="layers of each stage, as in 7,8,8,7; empty: as equal as possible",
    )
    add(
        "activation_dtype",
        "float32",
        help="dtype of activations and matmuls; variables stay float32",
        choices=PRECISIONS,
    )
    add(
        "microbatches",
        1,
        min=1,
        help="microbatches per step (gradient accumulation); the result is that of the whole batch",
    )
    _declare_optimizer(hparams)
    _declare_guards(hparams)
    _declare_learning_rate(hparams)
    return hparams


def declare_adapters(hparams: HParams) -> None:
    """Declares the low-rank adapters of models with attention (LoRA)."""
    add = hparams.add
    add(
        "lora_rank",
        0,
        min=0,
        max=MAX_SIZE,
        help="rank of adapters, which alone are trained (LoRA); 0: none, all weights are trained",
    )
    add("lora_alpha", 16.0, above=0, help="adapters are scaled by lora_alpha / lora_rank")
    add(
        "lora_targets",
        ["query", "value"],
        help="weights that have adapters: of attention, and the matrices of feed-forward layers",
        choices=ADAPTED,
    )
    add(
        "lora_dropout",
        0.0,
        min=0,
        below=1,
        help="fraction of the inputs of adapters that is dropped in training",
    )
    add(
        "lora_also_trained",
        "",
        help="regular expression of names of variables that are trained besides the adapters",
    )


def _declare_optimizer(hparams: HParams) -> None:
    add = hparams.add
    add("optimizer", "adam", help="a registered optimizer: sgd, adam, adafactor, lamb or lion")
    add("optimizer_adam_beta1", 0.9, min=0, below=1, help="first-moment decay (adam, lamb)")
    add("optimizer_adam_beta2", 0.98, min=0, below=1, help="second-moment decay (adam, lamb)")
    add("optimizer_adam_epsilon", 1e-9, above=0, help="added to the denominator (adam, lamb)")
    add("optimizer_momentum", 0.0, min=0, below=1, help="momentum (sgd)")
    add("optimizer_momentum_nesterov", False, help="Nesterov momentum (sgd)")
    add(
        "optimizer_lion_beta1",
        0.9,
        min=0,
        below=1,
        help="decay of the average in the step direction (lion)",
    )
    add(
        "optimizer_lion_beta2",
        0.99,
        min=0,
        below=1,
        help="decay of the stored average of gradients (lion)",
    )
    add(
        "optimizer_adafactor_beta1",
        0.0,
        min=0,
        below=1,
        help="momentum of updates (adafactor); 0: none, and no slots",
    )
    add(
        "optimizer_adafactor_factored",
        True,
        help="factor second moments into row and column means (adafactor)",
    )
    add(
        "optimizer_adafactor_memory_exponent",
        0.8,
        min=0,
        help="p: second-moment decay is 1 - step^-p (adafactor)",
    )
    add(
        "optimizer_adafactor_clipping_threshold",
        1.0,
        min=0,
        help="largest RMS of an update (adafactor); 0: none",
    )
    add(
        "optimizer_adafactor_multiply_by_parameter_scale",
        True,
        help="scale learning rates by the RMS of each variable (adafactor)",
    )
    add(
        "weight_decay",
        0.0,
        min=0,
        help="decoupled weight decay of matrices, multiplied by the learning rate",
    )
    add(
        "weight_decay_exclude", "", help="regular expression of variable names without weight decay"
    )
    add("clip_grad_norm", 1.0, min=0, help="max global norm of the gradients; 0: no clipping")
    add(
        "clip_grad_value",
        0.0,
        min=0,
        help="max absolute value of a gradient element; 0: no clipping",
    )
    add(
        "ema_decay",
        0.0,
        min=0,
        below=1,
        help="decay of the average of weights that evaluations use; 0: none",
    )


def _declare_guards(hparams: HParams) -> None:
    add = hparams.add
    add("skip_nonfinite_steps", False, help="skip steps with a non-finite loss or gradient")
    add(
        "skip_step_sigma",
        0.0,
        min=0,
        help="skip steps whose loss or gradient norm is this many standard deviations above the"
        " mean; 0: none",
    )
    add("skip_step_window", 128, min=2, help="steps over which that mean is taken")
    add("show_movement", False, help="report parameter_norm and update_norm")


def _declare_learning_rate(hparams: HParams) -> None:
    add = hparams.add
    add(
        "learning_rate_schedule",
        "constant*linear_warmup*cosine_decay",
        help="factors joined by *, as in constant*linear_warmup*rsqrt_decay",
    )
    add("learning_rate_constant", 1e-3, min=0, help="value of the factor constant")
    add("learning_rate_warmup_steps", 100, min=0, help="warm-up steps")
    add("learning_rate_decay_steps", 0, min=0, help="steps of the decay; 0: to the end of training")
    add(
        "learning_rate_decay_floor",
        0.0,
        min=0,
        max=1,
        help="final value of linear, cosine and sqrt decays",
    )
    add(
        "learning_rate_decay_rate",
        0.5,
        above=0,
        help="factor of exp_decay per learning_rate_decay_steps",
    )
    add("learning_rate_decay_staircase", False, help="apply exp_decay in discrete steps")
    add(
        "learning_rate_boundaries",
        [],
        min=0,
        help="steps at which piecewise changes",
        type=list[int],
    )
    add(
        "learning_rate_multiples",
        [],
        min=0,
        help="values of piecewise after those steps",
        type=list[float],
    )
