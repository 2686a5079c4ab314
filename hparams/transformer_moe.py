"""Sets of transformers with mixture-of-experts layers."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.transformer import transformer_base
from t2tp.hparams.transformer_encoder import transformer_encoder_base
from t2tp.hparams.transformer_lm import transformer_lm_plain
from t2tp.hparams.transformer_parts import declare_experts

_LAYOUT = "batch:data;experts:data;heads:model;d_ff:model;vocab:model"


def _with_experts(hparams: HParams) -> HParams:
    declare_experts(hparams)
    hparams.num_experts = 64
    hparams.layout = _LAYOUT
    return hparams


@registry.register_hparams
def transformer_moe_base() -> HParams:
    """`transformer_lm_plain` with 64 experts in every other layer."""
    return _with_experts(transformer_lm_plain())


@registry.register_hparams
def transformer_moe_encdec_base() -> HParams:
    """`transformer_base` with 64 experts in every other layer."""
    return _with_experts(transformer_base())


@registry.register_hparams
def transformer_moe_encoder_base() -> HParams:
    """`transformer_encoder_base` with 64 experts, by expert choice, in every other layer."""
    hparams = _with_experts(transformer_encoder_base())
    hparams.moe_gating = "expert_choice"
    return hparams
