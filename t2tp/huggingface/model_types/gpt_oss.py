"""gpt-oss: a window in every other layer, attention sinks, and experts with biases.

OpenAI's own files have experts of 4 bits; copies in bfloat16 have the tensors of this table.
"""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama, mixtral
from t2tp.huggingface.model_types.mixtral import MIXTRAL
from t2tp.huggingface.tensor_map import Entry, dense

_WINDOW = 128
_YARN = {
    **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"truncate": False, "original_max_position_embeddings": 4096},
}


def _read(config: Config) -> dict[str, Any]:
    is_local = [number % 2 == 0 for number in range(config["num_hidden_layers"])]
    rope = config.get("rope_scaling") or config.get("rope_parameters") or _YARN
    # Their experts have one activation, whatever hidden_act says.
    return {
        **llama.read({**config, "hidden_act": "silu", "rope_scaling": rope}),
        **llama.layers(config, llama.layer_types(config, is_local)),
        **mixtral.dropless(config["num_local_experts"]),
        **{"attention_sinks": True, "mlp": "clamped_swiglu", "mlp_bias": True},
        **{"moe_normalize_gates": True, "moe_router_bias": True},
    }


def _written(hparams: HParams) -> dict[str, Any]:
    found = {"rope_scaling": {"rope_type": "default"}, **llama.with_attention_bias(hparams)}
    found |= llama.written_layers(hparams, _WINDOW)
    return {**found, "hidden_act": "silu", "num_local_experts": hparams.num_experts}


def _tensors(hparams: HParams) -> list[Entry]:
    theirs, ours = f"{llama.BLOCK}.mlp", f"{llama.LAYER}/experts"
    hidden, biases = ((f"{ours}/gate{end}", f"{ours}/input{end}") for end in ("", "_bias"))
    into, out_of, bias = "experts d_model d_ff", "experts d_ff d_model", "experts d_model"
    return [
        *llama.around(hparams),
        *llama.attention(hparams),
        Entry(f"{llama.BLOCK}.self_attn.sinks", "heads", f"{llama.LAYER}/attention/sinks", "heads"),
        *llama.norms(hparams, "experts"),
        *dense(f"{theirs}.router", f"{ours}/router", "d_model", "router_experts"),
        Entry(f"{theirs}.experts.gate_up_proj", "experts d_model (d_ff part)", hidden, into),
        Entry(f"{theirs}.experts.gate_up_proj_bias", "experts (d_ff part)", biases, "experts d_ff"),
        Entry(f"{theirs}.experts.down_proj", out_of, f"{ours}/output", out_of),
        Entry(f"{theirs}.experts.down_proj_bias", bias, f"{ours}/output_bias", bias),
    ]


GPT_OSS = replace(
    MIXTRAL,
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    same={**llama.SAME, "num_experts_per_tok": "moe_top_k"},
    read=_read,
    written=_written,
    tensors=_tensors,
    reads=(*MIXTRAL.reads, "attention_bias", "layer_types"),
    without_effect=("hidden_act", "experts_per_token", "initial_context_length"),
    defaults={
        **{name: value for name, value in MIXTRAL.defaults.items() if name != "hidden_act"},
        **{"bos_token_id": None, "rope_theta": 150_000.0, "sliding_window": _WINDOW},
        **{"head_dim": 64, "attention_bias": True, "num_experts_per_tok": 4},
        **{"num_local_experts": 128},
    },
    required={**llama.REQUIRED, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
)
