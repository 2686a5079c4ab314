"""Mixtral: Mistral with two of several experts for each token. No expert drops a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama, mistral
from t2tp.huggingface.model_types.llama import LLAMA
from t2tp.huggingface.tensor_map import Entry

_EXPERT = "model.layers.{layer}.block_sparse_moe.experts.{expert}"
_OURS = "layer_{layer}/experts"


def _read(config: Config) -> dict[str, Any]:
    experts = config["num_local_experts"]
    return {
        **llama.read(config),
        "num_experts": experts,
        "moe_every": 1,
        "moe_gating": "top_2",
        # Each expert has room for all tokens.
        "moe_capacity_factor_train": experts / 2,
        "moe_capacity_factor_eval": experts / 2,
    }


def _training(config: Config) -> dict[str, Any]:
    balance = config["router_aux_loss_coef"] if config.get("output_router_logits") else 0.0
    return {"moe_load_balance_loss": balance, "moe_router_z_loss": 0.0}


def _written(hparams: HParams) -> dict[str, Any]:
    return {**mistral.written(hparams), "num_local_experts": hparams.num_experts}


def _tensors(hparams: HParams) -> list[Entry]:
    gate = "model.layers.{layer}.block_sparse_moe.gate.weight"
    into, out_of = "experts d_model d_ff", "experts d_ff d_model"
    return [
        *llama.around(hparams),
        *llama.attention(hparams),
        *llama.norms(hparams, "experts"),
        Entry(gate, "router_experts d_model", f"{_OURS}/router", "d_model router_experts"),
        Entry(f"{_EXPERT}.w1.weight", "d_ff d_model", f"{_OURS}/gate", into),
        Entry(f"{_EXPERT}.w3.weight", "d_ff d_model", f"{_OURS}/input", into),
        Entry(f"{_EXPERT}.w2.weight", "d_model d_ff", f"{_OURS}/output", out_of),
    ]


MIXTRAL = replace(
    LLAMA,
    name="mixtral",
    architecture="MixtralForCausalLM",
    model="transformer_moe",
    hparams_set="transformer_moe_base",
    read=_read,
    written=_written,
    training=_training,
    tensors=_tensors,
    reads=(*llama.READS, "output_router_logits"),
    defaults={
        **llama.DEFAULTS,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_local_experts": 8,
        "router_aux_loss_coef": 0.001,
    },
    required={**llama.REQUIRED, "num_experts_per_tok": 2, "router_jitter_noise": 0.0},
)
