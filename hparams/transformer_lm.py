"""Sets of `transformer_lm`, the decoder-only language model."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.base import base_hparams


@registry.register_hparams
def transformer_lm_base() -> HParams:
    """12 layers of 768: 85 million parameters besides the embedding."""
    hparams = base_hparams()
    hparams.batch_size = 32
    hparams.max_length = 1024
    hparams.layout = "batch:data;heads:model;d_ff:model;vocab:model"
    hparams.weight_decay = 0.1
    hparams.learning_rate_constant = 6e-4
    hparams.learning_rate_warmup_steps = 2000
    add = hparams.add
    add("d_model", 768)
    add("d_ff", 3072)
    add("num_heads", 12)
    add("d_kv", 64, help="size of a head")
    add("num_hidden_layers", 12)
    add("layer_prepostprocess_dropout", 0.0, help="of each block's output")
    add("initializer_stddev", 0.02, help="of the embeddings")
    add(
        "vocab_divisor",
        128,
        help="the vocabulary is rounded up to a multiple of this, so that meshes divide it",
    )
    return hparams


@registry.register_hparams
def transformer_lm_small() -> HParams:
    """6 layers of 384: 11 million parameters besides the embedding."""
    hparams = transformer_lm_base()
    hparams.max_length = 512
    hparams.d_model = 384
    hparams.d_ff = 1536
    hparams.num_heads = 8
    hparams.d_kv = 48
    hparams.num_hidden_layers = 6
    hparams.learning_rate_constant = 1e-3
    hparams.learning_rate_warmup_steps = 500
    return hparams


@registry.register_hparams
def transformer_lm_tiny() -> HParams:
    """2 layers of 128: for tests, demos and CPUs."""
    hparams = transformer_lm_small()
    hparams.batch_size = 16
    hparams.max_length = 128
    hparams.d_model = 128
    hparams.d_ff = 512
    hparams.num_heads = 4
    hparams.d_kv = 32
    hparams.num_hidden_layers = 2
    hparams.learning_rate_constant = 3e-3
    hparams.learning_rate_warmup_steps = 100
    return hparams
