"""Sets of `transformer_encoder`: text classification and masked language models."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts
from t2tp.hparams.base import MAX_SIZE


@registry.register_hparams
def transformer_encoder_base() -> HParams:
    """12 layers of 768, as in BERT base: 85 million parameters excluding embeddings."""
    hparams = transformer_parts.base_transformer()
    hparams.max_length = 512
    hparams.mlp = "gelu"
    hparams.norm_type = "layer"
    hparams.use_bias = True
    hparams.layer_prepostprocess_dropout = 0.1
    hparams.attention_dropout = 0.1
    hparams.learning_rate_constant = 1e-4
    add = hparams.add
    add(
        "mask_token_id",
        0,
        "masked language models: the token that masks others; 0: one after the vocabulary",
        min=0,
        max=2**31 - 1,
    )
    add(
        "num_classes",
        0,
        "number of classes, which must be the problem's; 0: the problem's",
        min=0,
        max=MAX_SIZE,
    )
    add(
        "token_types",
        0,
        "token types with an embedding each, as the two sentences of BERT; 0: none",
        min=0,
        max=MAX_SIZE,
    )
    add(
        "mlm_head",
        False,
        "masked language models: a dense layer, activation and norm before the logits",
    )
    add("logits_bias", False, "masked language models: whether logits have a bias")
    add(
        "pooler",
        False,
        "classification from a tanh layer on the first token, not from the mean of the row",
    )
    return hparams
