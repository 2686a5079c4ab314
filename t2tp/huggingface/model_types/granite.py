"""Granite: Llama with factors of embeddings, scores, blocks and logits."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config, canonical
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.llama import LLAMA


def _read(config: Config) -> dict[str, Any]:
    return {**llama.read(config), "attention_multiplier": config["attention_multiplier"]}


def _written(hparams: HParams) -> dict[str, Any]:
    multiplier = canonical(hparams).attention_multiplier
    return {**llama.with_biases(hparams), "attention_multiplier": multiplier}


GRANITE = replace(
    LLAMA,
    name="granite",
    architecture="GraniteForCausalLM",
    same={
        **llama.SAME,
        "embedding_multiplier": "embedding_multiplier",
        "residual_multiplier": "residual_multiplier",
        "logits_scaling": "logits_divisor",
    },
    read=_read,
    written=_written,
    defaults={
        **LLAMA.defaults,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "attention_multiplier": 1.0,
    },
)
