"""Qwen2: Llama with biases of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.llama import LLAMA


def _read(config: Config) -> dict[str, Any]:
    others = set(map(str, config.get("layer_types") or ())) - {"full_attention"}
    if others:
        raise ConversionError(
            f"config.json has layer_types with {', '.join(sorted(others))}: of models of type"
            " qwen2, t2tp has those with full_attention"
        )
    # Without use_sliding_window the entry sliding_window has no effect.
    return {**llama.read({**config, "sliding_window": None}), "qkv_bias": True}


QWEN2 = replace(
    LLAMA,
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    read=_read,
    written=llama.written,
    reads=(*llama.READS, "layer_types"),
    without_effect=("sliding_window", "max_window_layers"),
    defaults={
        **llama.DEFAULTS,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "bos_token_id": None,
    },
    required={**llama.REQUIRED, "use_sliding_window": False, "use_mrope": False},
)
