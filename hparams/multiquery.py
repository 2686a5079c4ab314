"""tensor2tensor's sets for multi-query attention.

They are for `transformer` and `transformer_lm` (N. Shazeer, arXiv:1911.02150, section 4).
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.mtf_transformer2 import mtf_unitransformer_base, tr_dense


@registry.register_hparams(model="transformer")
def mqp_ende_base() -> HParams:
    """8 heads of 128: 211 million parameters for a vocabulary of 32768."""
    hparams = tr_dense(0)
    hparams.tie_embeddings = True
    hparams.learning_rate_decay_steps = 20_000
    hparams.layer_prepostprocess_dropout = 0.2
    return hparams


@registry.register_hparams(model="transformer_lm")
def mqp_lm1b_base() -> HParams:
    """8 heads of 128 and a d_ff of 8192."""
    hparams = mtf_unitransformer_base()
    hparams.batch_size = 256
    hparams.max_length = 256
    hparams.mesh_shape = "data:32"
    hparams.d_ff = 8192
    hparams.learning_rate_decay_steps = 13_600
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_mq8() -> HParams:
    """8 heads share one head of keys and values: 178 million parameters."""
    hparams = mqp_ende_base()
    hparams.num_kv_heads = 1
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_mq8_ff5440() -> HParams:
    """`mqp_ende_mq8` with as many parameters as the base."""
    hparams = mqp_ende_mq8()
    hparams.d_ff = 5440
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h4_kv256() -> HParams:
    """4 heads of 256."""
    hparams = mqp_ende_base()
    hparams.num_heads = 4
    hparams.d_kv = 256
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h2_kv512() -> HParams:
    """2 heads of 512."""
    hparams = mqp_ende_base()
    hparams.num_heads = 2
    hparams.d_kv = 512
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h1_kv1024() -> HParams:
    """1 head of 1024."""
    hparams = mqp_ende_base()
    hparams.num_heads = 1
    hparams.d_kv = 1024
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h4_ff5632() -> HParams:
    """4 heads of 128 and a d_ff of 5632."""
    hparams = mqp_ende_base()
    hparams.num_heads = 4
    hparams.d_ff = 5632
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h2_ff6400() -> HParams:
    """2 heads of 128 and a d_ff of 6400."""
    hparams = mqp_ende_base()
    hparams.num_heads = 2
    hparams.d_ff = 6400
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h1_ff6784() -> HParams:
    """1 head of 128 and a d_ff of 6784."""
    hparams = mqp_ende_base()
    hparams.num_heads = 1
    hparams.d_ff = 6784
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h2_kv64_ff6784() -> HParams:
    """2 heads of 64 and a d_ff of 6784."""
    hparams = mqp_ende_base()
    hparams.num_heads = 2
    hparams.d_kv = 64
    hparams.d_ff = 6784
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h4_kv32_ff6784() -> HParams:
    """4 heads of 32 and a d_ff of 6784."""
    hparams = mqp_ende_base()
    hparams.num_heads = 4
    hparams.d_kv = 32
    hparams.d_ff = 6784
    return hparams


@registry.register_hparams(model="transformer")
def mqp_ende_h8_kv16_ff6784() -> HParams:
    """8 heads of 16 and a d_ff of 6784."""
    hparams = mqp_ende_base()
    hparams.d_kv = 16
    hparams.d_ff = 6784
    return hparams


@registry.register_hparams(model="transformer_lm")
def mqp_lm1b_mq8() -> HParams:
    """8 heads share one head of keys and values."""
    hparams = mqp_lm1b_base()
    hparams.num_kv_heads = 1
    return hparams


@registry.register_hparams(model="transformer_lm")
def mqp_lm1b_mq8_ff9088() -> HParams:
    """`mqp_lm1b_mq8` with as many parameters as the base."""
    hparams = mqp_lm1b_mq8()
    hparams.d_ff = 9088
    return hparams


@registry.register_hparams(model="transformer_lm")
def mqp_lm1b_h1_ff9984() -> HParams:
    """1 head of 128 and a d_ff of 9984."""
    hparams = mqp_lm1b_base()
    hparams.num_heads = 1
    hparams.d_ff = 9984
    return hparams


@registry.register_hparams(model="transformer_lm")
def mqp_lm1b_h2_kv64_ff9984() -> HParams:
    """2 heads of 64 and a d_ff of 9984."""
    hparams = mqp_lm1b_base()
    hparams.num_heads = 2
    hparams.d_kv = 64
    hparams.d_ff = 9984
    return hparams


@registry.register_hparams(model="transformer_lm")
def mqp_lm1b_h4_kv32_ff9984() -> HParams:
    """4 heads of 32 and a d_ff of 9984."""
    hparams = mqp_lm1b_base()
    hparams.num_heads = 4
    hparams.d_kv = 32
    hparams.d_ff = 9984
    return hparams


@registry.register_hparams(model="transformer_lm")
def mqp_lm1b_h8_kv16_ff9984() -> HParams:
    """8 heads of 16 and a d_ff of 9984."""
    hparams = mqp_lm1b_base()
    hparams.d_kv = 16
    hparams.d_ff = 9984
    return hparams
