"""Qwen3-MoE: Qwen3 with some of many experts for each token. No expert drops a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.mixtral import MIXTRAL
from t2tp.huggingface.tensor_map import Entry

_THEIRS, _OURS = "model.layers.{layer}.mlp", "layer_{layer}/experts"
# The hidden size of an expert is not that of layers without experts, which t2tp does not have here.
_SAME = {name: ours for name, ours in llama.SAME.items() if ours != "d_ff"}


def _read(config: Config) -> dict[str, Any]:
    size = config.get("sliding_window") if config.get("use_sliding_window") else None
    return {
        **llama.read({**config, "sliding_window": size}),
        "qk_norm": "head",
        # Configs of transformers 5 have the first entry, and older ones the second.
        "num_experts": config.get("num_local_experts", config["num_experts"]),
        "moe_every": 1,
        "moe_gating": "top_k",
        "moe_dispatch": "dropless",
    }


def _written(hparams: HParams) -> dict[str, Any]:
    size = hparams.attention_window if hparams.attention_type == "local" else None
    return {
        **llama.with_attention_bias(hparams),
        "sliding_window": size,
        "use_sliding_window": size is not None,
        "num_local_experts": hparams.num_experts,
    }


def _tensors(hparams: HParams) -> list[Entry]:
    into, out_of = "experts d_model d_ff", "experts d_ff d_model"
    router, expert = "d_model router_experts", f"{_THEIRS}.experts.{{expert}}"
    return [
        *llama.around(hparams),
        *llama.attention(hparams),
        *llama.norms(hparams, "experts"),
        Entry(f"{_THEIRS}.gate.weight", "router_experts d_model", f"{_OURS}/router", router),
        Entry(f"{expert}.gate_proj.weight", "d_ff d_model", f"{_OURS}/gate", into),
        Entry(f"{expert}.up_proj.weight", "d_ff d_model", f"{_OURS}/input", into),
        Entry(f"{expert}.down_proj.weight", "d_model d_ff", f"{_OURS}/output", out_of),
    ]


QWEN3_MOE = replace(
    MIXTRAL,
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    same={
        **_SAME,
        "moe_intermediate_size": "d_ff",
        "num_experts_per_tok": "moe_top_k",
        "norm_topk_prob": "moe_normalize_gates",
    },
    read=_read,
    written=_written,
    tensors=_tensors,
    reads=(
        *MIXTRAL.reads,
        *("attention_bias", "use_sliding_window", "intermediate_size", "num_local_experts"),
    ),
    defaults={
        **llama.DEFAULTS,
        "bos_token_id": None,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
    },
    required={**llama.REQUIRED, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
