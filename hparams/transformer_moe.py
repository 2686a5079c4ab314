"""Sets of transformers with mixture-of-experts layers."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.transformer import (
    transformer_base,
    transformer_large,
    transformer_small,
    transformer_tiny,
)
from t2tp.hparams.transformer_encoder import (
    transformer_encoder_base,
    transformer_encoder_large,
    transformer_encoder_small,
    transformer_encoder_tiny,
)
from t2tp.hparams.transformer_lm import (
    transformer_lm_base,
    transformer_lm_large,
    transformer_lm_small,
    transformer_lm_tiny,
)
from t2tp.hparams.transformer_parts import declare_experts

_LAYOUT = "batch:data;experts:data;heads:model;d_ff:model;vocab:model"


def _with_experts(hparams: HParams, num_experts: int) -> HParams:
    declare_experts(hparams)
    hparams.num_experts = num_experts
    hparams.layout = _LAYOUT
    return hparams


@registry.register_hparams
def transformer_moe_base() -> HParams:
    """`transformer_lm_base` with 64 experts in every other layer."""
    return _with_experts(transformer_lm_base(), 64)


@registry.register_hparams
def transformer_moe_large() -> HParams:
    """`transformer_lm_large` with 128 experts in every other layer."""
    return _with_experts(transformer_lm_large(), 128)


@registry.register_hparams
def transformer_moe_small() -> HParams:
    """`transformer_lm_small` with 16 experts in every other layer."""
    return _with_experts(transformer_lm_small(), 16)


@registry.register_hparams
def transformer_moe_tiny() -> HParams:
    """`transformer_lm_tiny` with 8 experts in its second layer."""
    return _with_experts(transformer_lm_tiny(), 8)


@registry.register_hparams
def transformer_moe_encdec_base() -> HParams:
    """`transformer_base` with 64 experts in every other layer."""
    return _with_experts(transformer_base(), 64)


@registry.register_hparams
def transformer_moe_encdec_large() -> HParams:
    """`transformer_large` with 128 experts in every other layer."""
    return _with_experts(transformer_large(), 128)


@registry.register_hparams
def transformer_moe_encdec_small() -> HParams:
    """`transformer_small` with 16 experts in every other layer."""
    return _with_experts(transformer_small(), 16)


@registry.register_hparams
def transformer_moe_encdec_tiny() -> HParams:
    """`transformer_tiny` with 8 experts in the second layers."""
    return _with_experts(transformer_tiny(), 8)


@registry.register_hparams
def transformer_moe_encoder_base() -> HParams:
    """`transformer_encoder_base` with 64 experts, by expert choice, in every other layer."""
    hparams = _with_experts(transformer_encoder_base(), 64)
    hparams.moe_gating = "expert_choice"
    return hparams


@registry.register_hparams
def transformer_moe_encoder_tiny() -> HParams:
    """`transformer_encoder_tiny` with 8 experts, by expert choice, in the second layer."""
    hparams = _with_experts(transformer_encoder_tiny(), 8)
    hparams.moe_gating = "expert_choice"
    return hparams


@registry.register_hparams
def transformer_moe_encoder_small() -> HParams:
    """`transformer_encoder_small` with 16 experts, by expert choice, in every other layer."""
    hparams = _with_experts(transformer_encoder_small(), 16)
    hparams.moe_gating = "expert_choice"
    return hparams


@registry.register_hparams
def transformer_moe_encoder_large() -> HParams:
    """`transformer_encoder_large` with 128 experts, by expert choice, in every other layer."""
    hparams = _with_experts(transformer_encoder_large(), 128)
    hparams.moe_gating = "expert_choice"
    return hparams
