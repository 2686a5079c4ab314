"""Mistral: Llama with a sliding window."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.llama import LLAMA


def written(hparams: HParams) -> dict[str, Any]:
    """Returns the entries of a config that are not simply hparams."""
    is_local = hparams.attention_type == "local"
    size = hparams.attention_window if is_local else None
    return {**llama.written(hparams), "sliding_window": size}


MISTRAL = replace(
    LLAMA,
    name="mistral",
    architecture="MistralForCausalLM",
    written=written,
    reads=llama.READS,
    defaults={
        **llama.DEFAULTS,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    required=llama.REQUIRED,
)
