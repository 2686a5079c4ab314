"""Sets of `transformer`, the encoder-decoder."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts


@registry.register_hparams
def transformer_base() -> HParams:
    """6 + 6 layers of 512: the size of "Attention Is All You Need", with pre-norm layers."""
    hparams = transformer_parts.base_encoder_decoder()
    hparams.max_length = 256
    hparams.d_model = 512
    hparams.d_ff = 2048
    hparams.num_heads = 8
    hparams.num_hidden_layers = 6
    hparams.position = "sinusoidal"
    hparams.norm_type = "layer"
    hparams.use_bias = True
    hparams.scale_embeddings = True
    hparams.initializer_stddev = 512**-0.5
    hparams.layer_prepostprocess_dropout = 0.1
    hparams.layer_prepostprocess_dropout_broadcast_dims = ["length"]
    hparams.attention_dropout = 0.1
    hparams.relu_dropout = 0.1
    hparams.label_smoothing = 0.1
    hparams.weight_decay = 0.0
    return hparams
