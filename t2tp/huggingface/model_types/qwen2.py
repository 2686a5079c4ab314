"""Qwen2: Llama with biases of queries, keys and values."""

from __future__ import annotations

from typing import Any

from t2tp.huggingface.model_type import Config, ModelType
from t2tp.huggingface.model_types import llama


def _read(config: Config) -> dict[str, Any]:
    # Without use_sliding_window the entry sliding_window has no effect.
    return {**llama.read({**config, "sliding_window": None}), "qkv_bias": True}


QWEN2 = ModelType(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    model="transformer_lm",
    hparams_set="transformer_lm_base",
    problem="languagemodel_textfiles",
    same=llama.SAME,
    read=_read,
    written=llama.written,
    tensors=llama.tensors,
    defaults={**llama.DEFAULTS, "max_position_embeddings": 32768, "bos_token_id": None},
    required={"use_sliding_window": False},
    prefix="model.",
)
