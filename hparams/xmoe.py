"""tensor2tensor's mixture-of-experts experiments and their dense baselines.

docs/hparams_sets.md lists those that t2tp's models do not support.
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts
from t2tp.hparams.mtf_transformer import mtf_transformer_base_lm, of_width, paper_lm
from t2tp.hparams.mtf_transformer2 import mtf_bitransformer_base


@registry.register_hparams(model="transformer_lm")
def xmoe_dense_4k() -> HParams:
    """4 layers of 512, d_ff 4096: 30 million parameters for a vocabulary of 8192."""
    hparams = mtf_transformer_base_lm()
    _without_dropout(hparams)
    hparams.batch_size = 128
    hparams.mesh_shape = "data:8"
    hparams.learning_rate_schedule = "rsqrt_decay"
    hparams.d_ff = 4096
    hparams.num_heads = 4
    hparams.num_hidden_layers = 4
    hparams.tie_embeddings = False
    return hparams


@registry.register_hparams(model="transformer_lm")
def xmoe_dense_8k() -> HParams:
    """`xmoe_dense_4k` with a d_ff of 8192: 46 million parameters."""
    hparams = xmoe_dense_4k()
    hparams.d_ff = 8192
    return hparams


@registry.register_hparams(model="transformer_lm")
def xmoe_dense_64k() -> HParams:
    """`xmoe_dense_4k` with a d_ff of 65536: 282 million parameters."""
    hparams = xmoe_dense_4k()
    hparams.d_ff = 65536
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer_moe")
def xmoe_top_2() -> HParams:
    """`xmoe_dense_4k` with 16 experts in every layer: 282 million parameters."""
    hparams = xmoe_dense_4k()
    _experts_everywhere(hparams)
    return hparams


@registry.register_hparams(model="transformer_moe")
def xmoe_top_2_c15() -> HParams:
    """`xmoe_top_2` with a capacity factor of 1.5."""
    hparams = xmoe_top_2()
    hparams.moe_capacity_factor_train = 1.5
    return hparams


@registry.register_hparams(model="transformer")
def xmoe_tr_dense_2k() -> HParams:
    """4 + 4 layers of 1024, d_ff 2048: 119 million parameters for a vocabulary of 32768."""
    hparams = mtf_bitransformer_base()
    hparams.batch_size = 64
    hparams.mesh_shape = "data:8"
    hparams.num_hidden_layers = 4
    hparams.tie_embeddings = True
    return hparams


@registry.register_hparams(model="transformer")
def xmoe_tr_dense_32k() -> HParams:
    """`xmoe_tr_dense_2k` with a d_ff of 32768: 623 million parameters."""
    hparams = xmoe_tr_dense_2k()
    hparams.d_ff = 32768
    return hparams


@registry.register_hparams(model="transformer_moe_encdec")
def xmoe_tr_1d() -> HParams:
    """`xmoe_tr_dense_2k` with 16 experts in every layer: 623 million parameters."""
    hparams = xmoe_tr_dense_2k()
    _experts_everywhere(hparams)
    return hparams


def xmoe2_dense(size: int) -> HParams:
    """Returns the set of a language model of 1024 tokens, for unlimited data.

    Args:
      size: each step doubles the heads and d_ff: 8 and 8192 at 0.
    """
    hparams = paper_lm(size)
    _without_dropout(hparams)
    hparams.batch_size = 128
    hparams.max_length = 1024
    hparams.mesh_shape = "data:32"
    hparams.learning_rate_schedule = "rsqrt_decay*linear_decay"
    hparams.learning_rate_decay_steps = 65_536
    return hparams


@registry.register_hparams(model="transformer_lm")
def xmoe2_dense_0() -> HParams:
    """8 heads and a d_ff of 8192."""
    return xmoe2_dense(0)


@registry.register_hparams(model="transformer_lm")
def xmoe2_dense_1() -> HParams:
    """16 heads and a d_ff of 16384."""
    return xmoe2_dense(1)


@registry.register_hparams(model="transformer_lm")
def xmoe2_dense_2() -> HParams:
    """32 heads and a d_ff of 32768."""
    return xmoe2_dense(2)


@registry.register_hparams(model="transformer_lm")
def xmoe2_dense_3() -> HParams:
    """64 heads and a d_ff of 65536."""
    return xmoe2_dense(3)


@registry.register_hparams(model="transformer_lm")
def wiki_2x2_base() -> HParams:
    """6 layers of 1024, 4 heads and a d_ff of 2048, over 8 devices."""
    hparams = mtf_transformer_base_lm()
    _without_dropout(hparams)
    of_width(hparams, 1024)
    hparams.batch_size = 32
    hparams.max_length = 1024
    hparams.mesh_shape = "data:8"
    hparams.learning_rate_schedule = "rsqrt_decay"
    hparams.num_heads = 4
    hparams.tie_embeddings = False
    return hparams


def _without_dropout(hparams: HParams) -> None:
    hparams.layer_prepostprocess_dropout = 0.0
    hparams.attention_dropout = 0.0
    hparams.relu_dropout = 0.0


def _experts_everywhere(hparams: HParams) -> None:
    """Adds 16 experts in every layer, two per token."""
    transformer_parts.declare_experts(hparams)
    hparams.layout += ";experts:data"
    hparams.num_experts = 16
    hparams.moe_every = 1
    hparams.moe_gating = "top_2"
    hparams.moe_group_size = 1024
    hparams.moe_router_z_loss = 0.0
