"""Sets of `vit`, the vision transformer."""

from __future__ import annotations

from t2tp import choices, registry
from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_LAYERS, MAX_SIZE, base_hparams, declare_adapters


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
    add("patch_size", 16, min=1, help="height and width of a patch, in pixels")
    add(
        "pooling",
        "class",
        help="class: of a class token; mean: over all patches",
        choices=choices.POOLINGS,
    )
    add(
        "image_shape",
        [],
        type=list[int],
        min=1,
        help="height, width and channels, which must be the problem's; []: those of the problem",
    )
    add(
        "image_mean",
        [],
        type=list[float],
        min=0,
        max=1,
        help="subtracted from each channel of images from 0 to 1; []: nothing is",
    )
    add(
        "image_std",
        [],
        type=list[float],
        above=0,
        help="by which each channel is divided after that; []: it is not",
    )
    add(
        "num_classes",
        0,
        min=0,
        max=MAX_SIZE,
        help="classes, which must be those of the problem; 0: those of the problem",
    )
    add("d_model", 768, min=1, max=MAX_SIZE, help="width of the residual stream")
    add("d_ff", 3072, min=1, max=MAX_SIZE, help="hidden size of feed-forward layers")
    add(
        "mlp",
        "gelu_erf",
        help="feed-forward activation; gelu is the tanh approximation; swiglu and geglu are gated",
        choices=choices.MLPS,
    )
    add("qkv_bias", True, help="biases of queries, keys and values")
    add("num_heads", 12, min=1, max=MAX_SIZE, help="attention heads")
    add("d_kv", 64, min=1, max=MAX_SIZE, help="size per head")
    add("num_hidden_layers", 12, min=1, max=MAX_LAYERS, help="number of layers")
    add(
        "dropout",
        0.1,
        min=0,
        below=1,
        help="dropout of the embedding, of each block's output and in feed-forward layers",
    )
    add("attention_dropout", 0.0, min=0, below=1, help="dropout of attention weights")
    add("norm_epsilon", 1e-6, above=0, help="epsilon added to the variance")
    add(
        "recompute",
        "none",
        help="which layers recompute their activations in the backward pass",
        choices=choices.RECOMPUTE,
    )
    add("initializer_stddev", 0.02, min=0, help="standard deviation of initial position embeddings")
    add(
        "label_smoothing",
        0.0,
        min=0,
        below=1,
        help="label smoothing: probability spread over the other classes",
    )
    return hparams
