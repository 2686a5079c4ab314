"""The hyperparameters of every set: batch, mesh, optimizer, learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from t2tp.choices import ADAPTED, BATCH_SIZE_UNITS, PRECISIONS
from t2tp.hparam import HParams

# Upper bounds of dimensions and layers: a typo above them would fill the memory before any error
# is raised.
MAX_SIZE = 2**20
MAX_LAYERS = 10_000

# Limits of dimensions, and of probabilities and decays.
SIZE = {"min": 1, "max": MAX_SIZE}
RATE = {"min": 0, "below": 1}


def bounded(hparams: HParams, limits: Mapping[str, Any]) -> Callable[..., None]:
    """Returns `hparams.add` with limits that many hyperparameters share."""
    return partial(hparams.add, **limits)


def base_hparams() -> HParams:
    """Parent of all sets: declares the hyperparameters of the trainer."""
    hparams = HParams()
    add = hparams.add
    add("batch_size", 16, "examples or tokens per step, as batch_size_unit says", min=1)
    add(
        "batch_size_unit",
        "sequences_per_batch",
        "what batch_size counts; a sequence counts as max_length tokens",
        choices=BATCH_SIZE_UNITS,
    )
    add("max_length", 256, "tokens per sequence", min=1, max=2**24)
    add(
        "mesh_shape",
        "",
        "axes of the mesh and their sizes, as in data:2;model:4; empty: one device",
    )
    add("layout", "batch:data", "dimension:axis rules, as in batch:data;d_ff:model")
    add(
        "zero_stage",
        0,
        "state to shard at rest over the axes that split the batch: 1: optimizer state, 2:"
        " gradients too, 3: weights too (ZeRO, FSDP)",
        min=0,
        max=3,
    )
    add("zero_axes", "", "axes that shard at rest, as in pod+data; empty: the batch's axes")
    add(
        "storage_layout",
        "",
        "dimension:axis rules of variables at rest; empty: the first free dimension of each",
    )
    add("zero_prefetch", 1, "layers that gathers run ahead in stage 3", min=0)
    add(
        "pipeline_schedule",
        "1f1b",
        "order of forward and backward passes if layout splits the layers: gpipe, 1f1b,"
        " interleaved, zero_bubble, or a .csv file",
    )
    add("pipeline_chunks", 1, "separate chunks of layers of each stage", min=1)
    add("pipeline_layers", "", "layers of each stage, as in 7,8,8,7; empty: as equal as possible")
    add(
        "activation_dtype",
        "float32",
        "dtype of activations and matmuls; variables stay float32",
        choices=PRECISIONS,
    )
    add(
        "microbatches",
        1,
        "microbatches per step (gradient accumulation); the result equals the whole batch's",
        min=1,
    )
    _declare_optimizer(hparams)
    _declare_guards(hparams)
    _declare_learning_rate(hparams)
    return hparams


def declare_adapters(hparams: HParams) -> None:
    """Declares the low-rank adapters of models with attention (LoRA)."""
    add = hparams.add
    rate = bounded(hparams, RATE)
    add(
        "lora_rank",
        0,
        "rank of adapters, which alone are trained (LoRA); 0: none, all weights are trained",
        min=0,
        max=MAX_SIZE,
    )
    add("lora_alpha", 16.0, "adapters are scaled by lora_alpha / lora_rank", above=0)
    add(
        "lora_targets",
        ["query", "value"],
        "weights that have adapters: of attention, and the matrices of feed-forward layers",
        choices=ADAPTED,
    )
    rate("lora_dropout", 0.0, "fraction of the inputs of adapters that is dropped in training")
    add(
        "lora_also_trained",
        "",
        "regular expression of names of variables that are trained besides the adapters",
    )


def _declare_optimizer(hparams: HParams) -> None:
    add = hparams.add
    rate = bounded(hparams, RATE)
    add(
        "transfer_from",
        "",
        "a hparams set: the model takes its hyperparameters, tuned for the sizes of that set",
    )
    add("optimizer", "adam", "a registered optimizer: sgd, adam, muon, adafactor, lamb or lion")
    rate("optimizer_adam_beta1", 0.9, "first-moment decay (adam, muon, lamb)")
    rate("optimizer_adam_beta2", 0.98, "second-moment decay (adam, muon, lamb)")
    add("optimizer_adam_epsilon", 1e-9, "added to the denominator (adam, muon, lamb)", above=0)
    rate("optimizer_momentum", 0.0, "momentum (sgd)")
    add("optimizer_momentum_nesterov", False, "Nesterov momentum (sgd)")
    rate("optimizer_lion_beta1", 0.9, "decay of the average in the step direction (lion)")
    rate("optimizer_lion_beta2", 0.99, "decay of the stored average of gradients (lion)")
    rate("optimizer_muon_momentum", 0.95, "decay of the average of gradients (muon)")
    add("optimizer_muon_steps", 5, "Newton-Schulz iterations (muon)", min=1, max=100)
    add(
        "optimizer_muon_scale",
        "match_rms_adamw",
        "scale of matrices' updates (muon): match_rms_adamw (learning rates as Adam's), original",
        choices=("match_rms_adamw", "original"),
    )
    add(
        "optimizer_muon_relative_rate",
        1.0,
        "learning rate of matrices, relative to the rate of all other variables (muon)",
        above=0,
    )
    rate("optimizer_adafactor_beta1", 0.0, "momentum of updates (adafactor); 0: none, and no slots")
    add(
        "optimizer_adafactor_factored",
        True,
        "factor second moments into row and column means (adafactor)",
    )
    add(
        "optimizer_adafactor_memory_exponent",
        0.8,
        "p: second-moment decay is 1 - step^-p (adafactor)",
        min=0,
    )
    add(
        "optimizer_adafactor_clipping_threshold",
        1.0,
        "largest RMS of an update (adafactor); 0: none",
        min=0,
    )
    add(
        "optimizer_adafactor_multiply_by_parameter_scale",
        True,
        "scale learning rates by the RMS of each variable (adafactor)",
    )
    add(
        "weight_decay",
        0.0,
        "decoupled weight decay of matrices, multiplied by the learning rate",
        min=0,
    )
    add("weight_decay_exclude", "", "regular expression of variable names without weight decay")
    add("clip_grad_norm", 1.0, "max global norm of the gradients; 0: no clipping", min=0)
    add("clip_grad_value", 0.0, "max absolute value of a gradient element; 0: no clipping", min=0)
    rate("ema_decay", 0.0, "decay of the average of weights that evaluations use; 0: none")


def _declare_guards(hparams: HParams) -> None:
    add = hparams.add
    add("skip_nonfinite_steps", False, "skip steps with a non-finite loss or gradient")
    add(
        "skip_step_sigma",
        0.0,
        "skip steps whose loss or gradient norm is this many standard deviations above the"
        " mean; 0: none",
        min=0,
    )
    add("skip_step_window", 128, "steps over which that mean is taken", min=2)
    add("show_movement", False, "report parameter_norm and update_norm")


def _declare_learning_rate(hparams: HParams) -> None:
    add = hparams.add
    add(
        "learning_rate_schedule",
        "constant*linear_warmup*cosine_decay",
        "factors joined by *, as in constant*linear_warmup*rsqrt_decay",
    )
    add("learning_rate_constant", 1e-3, "value of the factor constant", min=0)
    add("learning_rate_warmup_steps", 100, "warm-up steps", min=0)
    add("learning_rate_decay_steps", 0, "steps of the decay; 0: to the end of training", min=0)
    add(
        "learning_rate_decay_fraction",
        1.0,
        "last fraction of training that linear and sqrt decays take, if learning_rate_decay_steps"
        " is 0",
        above=0,
        max=1,
    )
    add(
        "learning_rate_decay_floor",
        0.0,
        "final value of linear, cosine and sqrt decays",
        min=0,
        max=1,
    )
    add(
        "learning_rate_decay_rate",
        0.5,
        "factor of exp_decay per learning_rate_decay_steps",
        above=0,
    )
    add("learning_rate_decay_staircase", False, "apply exp_decay in discrete steps")
    add("learning_rate_boundaries", [], "steps at which piecewise changes", min=0, type=list[int])
    add(
        "learning_rate_multiples",
        [],
        "values of piecewise after those steps",
        min=0,
        type=list[float],
    )
