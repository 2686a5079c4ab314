"""Mixtral: Mistral with two of several experts for each token. No expert drops a token."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama, mistral
from t2tp.huggingface.model_types.llama import LLAMA
from t2tp.huggingface.tensor_map import Entry, dense


def dropless(num_experts: int) -> dict[str, Any]:
    """Returns the hparams of layers of experts that have no capacity."""
    return {
        "num_experts": num_experts,
        "moe_every": 1,
        "moe_gating": "top_k",
        "moe_dispatch": "dropless",
    }


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


def tensors(module: str, names: Sequence[str]) -> Callable[[HParams], list[Entry]]:
    """Returns the table of models in whose files each expert has tensors of its own.

    Args:
      module: the name of the experts' module.
      names: the names of the matrices of an expert: gate, input and output.
    """
    theirs, ours = f"{llama.BLOCK}.{module}", f"{llama.LAYER}/experts"
    into, out_of = "experts d_model d_ff", "experts d_ff d_model"
    experts = (
        ("gate", "d_ff d_model", into),
        ("input", "d_ff d_model", into),
        ("output", "d_model d_ff", out_of),
    )
    entries = [
        *dense(f"{theirs}.gate", f"{ours}/router", "d_model", "router_experts", bias=False),
        *(
            Entry(f"{theirs}.experts.{{expert}}.{name}.weight", their_dims, f"{ours}/{each}", dims)
            for name, (each, their_dims, dims) in zip(names, experts, strict=True)
        ),
    ]
    return lambda hparams: [
        *llama.around(hparams),
        *llama.attention(hparams),
        *llama.norms(hparams, "experts"),
        *entries,
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
    tensors=tensors("block_sparse_moe", ("w1", "w3", "w2")),
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
