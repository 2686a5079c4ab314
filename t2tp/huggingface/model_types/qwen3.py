"""Qwen3: Qwen2 with norms of the queries and keys of each head, and without their biases."""

from dataclasses import replace
from typing import Any

from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama, qwen2
from t2tp.huggingface.model_types.qwen2 import QWEN2


def _read(config: Config) -> dict[str, Any]:
    return {**llama.read(config), "qk_norm": "head", **qwen2.windows(config)}


QWEN3 = replace(
    QWEN2,
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    read=_read,
    written=lambda hparams: {
        **llama.with_attention_bias(hparams),
        **qwen2.written_windows(hparams),
    },
    reads=(*QWEN2.reads, "attention_bias"),
    defaults={**QWEN2.defaults, "head_dim": 128},
    required=llama.REQUIRED,
)
