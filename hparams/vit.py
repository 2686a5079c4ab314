"""Sets of `vit`, the vision transformer."""

from __future__ import annotations

from t2tp import choices, registry
from t2tp.hparam import HParams
from t2tp.hparams.base import (
    MAX_LAYERS,
    MAX_SIZE,
    RATE,
    SIZE,
    base_hparams,
    bounded,
    declare_adapters,
)


@registry.register_hparams
def vit_base() -> HParams:
    """ViT-B/16 (arXiv:2010.11929, table 1): 86 million parameters."""
    hparams = base_hparams()
    declare_adapters(hparams)
    hparams.batch_size = 1024
    hparams.layout = "batch:data;heads:model;d_ff:model;height:rows;width:columns"
    hparams.optimizer_adam_beta2 = 0.999
    hparams.weight_decay = 0.1
    hparams.learning_rate_constant = 1e-3
    hparams.learning_rate_warmup_steps = 10000
    add = hparams.add
    size = bounded(hparams, SIZE)
    rate = bounded(hparams, RATE)
    add("patch_size", 16, "height and width of a patch, in pixels", min=1)
    add(
        "pooling",
        "class",
        "class: of a class token; mean: over all patches",
        choices=choices.POOLINGS,
    )
    add(
        "image_shape",
        [],
        "height, width and channels, which must be the problem's; []: the problem's",
        type=list[int],
        min=1,
    )
    add(
        "image_mean",
        [],
        "mean of each channel to subtract, images being from 0 to 1; []: none",
        type=list[float],
        min=0,
        max=1,
    )
    add(
        "image_std",
        [],
        "standard deviation to divide each channel by after that; []: none",
        type=list[float],
        above=0,
    )
    add(
        "num_classes",
        0,
        "number of classes, which must be the problem's; 0: the problem's",
        min=0,
        max=MAX_SIZE,
    )
    size("d_model", 768, "width of the residual stream")
    size("d_ff", 3072, "hidden size of feed-forward layers")
    add(
        "mlp",
        "gelu_erf",
        "feed-forward activation; gelu is the tanh approximation; swiglu and geglu are gated",
        choices=choices.MLPS,
    )
    add("qkv_bias", True, "biases of queries, keys and values")
    size("num_heads", 12, "attention heads")
    size("d_kv", 64, "size per head")
    add("num_hidden_layers", 12, "number of layers", min=1, max=MAX_LAYERS)
    rate(
        "dropout",
        0.1,
        "dropout of the embedding, of each block's output and in feed-forward layers",
    )
    rate("attention_dropout", 0.0, "dropout of attention weights")
    add("norm_epsilon", 1e-6, "epsilon added to the variance", above=0)
    add(
        "recompute",
        "none",
        "which layers recompute their activations in the backward pass",
        choices=choices.RECOMPUTE,
    )
    add("initializer_stddev", 0.02, "standard deviation of initial position embeddings", min=0)
    rate("label_smoothing", 0.0, "label smoothing: probability spread over the other classes")
    return hparams
