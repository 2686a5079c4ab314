"""Qwen3-MoE: Qwen3 with some of many experts for each token. No expert drops a token."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama, mixtral
from t2tp.huggingface.model_types.mixtral import MIXTRAL

# The hidden size of an expert is not that of layers without experts, which t2tp does not have here.
_SAME = {name: ours for name, ours in llama.SAME.items() if ours != "d_ff"}


def _read(config: Config) -> dict[str, Any]:
    size = config.get("sliding_window") if config.get("use_sliding_window") else None
    return {
        **llama.read({**config, "sliding_window": size}),
        "qk_norm": "head",
        # Configs of transformers 5 have the first entry, and older ones the second.
        **mixtral.dropless(config.get("num_local_experts", config["num_experts"])),
    }


def _written(hparams: HParams) -> dict[str, Any]:
    size = hparams.attention_window if hparams.attention_type == "local" else None
    return {
        **llama.with_attention_bias(hparams),
        "sliding_window": size,
        "use_sliding_window": size is not None,
        "num_local_experts": hparams.num_experts,
    }


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
    tensors=mixtral.tensors("mlp", ("gate_proj", "up_proj", "down_proj")),
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
