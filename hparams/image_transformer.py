"""Sets of `mtf_image_transformer`, which generates images value by value.

`mtf_image_transformer_digits`, `_small` and `_large` are t2tp's, trained with Adam. The others are
tensor2tensor's, with its values and training; docs/hparams_sets.md lists those that differ, because
they do not work there, and why.
"""

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
def mtf_image_transformer_small() -> HParams:
    """4 layers of 256 for 32 x 32 pixels, on one device."""
    hparams = base_hparams()
    declare_adapters(hparams)
    hparams.batch_size = 8
    hparams.layout = "batch:data;heads:model;d_ff:model;vocab:model;length:length"
    hparams.learning_rate_constant = 5e-4
    hparams.learning_rate_warmup_steps = 10000
    add = hparams.add
    size = bounded(hparams, SIZE)
    rate = bounded(hparams, RATE)
    size("image_shape", [32, 32, 3], "height, width and channels of the images")
    add(
        "attention_type",
        "local_1d",
        "kind of self-attention",
        choices=choices.IMAGE_ATTENTION_TYPES,
    )
    add(
        "block_length",
        128,
        "values per block of local_1d; each also attends to the block before",
        min=1,
    )
    add("block_height", 16, "rows per block of local_2d", min=1)
    add("block_width", 16, "values per row of such a block, channels included", min=1)
    size("d_model", 256, "width of the residual stream")
    size("d_ff", 1024, "hidden size of feed-forward layers")
    size("num_heads", 8, "attention heads")
    add(
        "num_kv_heads",
        0,
        "key/value heads (grouped-query attention); 0: num_heads",
        min=0,
        max=MAX_SIZE,
    )
    size("d_kv", 64, "size per head")
    add("num_hidden_layers", 4, "number of layers", min=1, max=MAX_LAYERS)
    rate("layer_prepostprocess_dropout", 0.1, "dropout of the embedding and of each block's output")
    rate("relu_dropout", 0.0, "dropout in feed-forward layers")
    add(
        "recompute",
        "none",
        "which layers recompute their activations in the backward pass",
        choices=choices.RECOMPUTE,
    )
    add("initializer_stddev", 0.02, "standard deviation of initial embeddings", min=0)
    return hparams
