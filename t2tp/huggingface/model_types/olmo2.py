"""OLMo 2: Llama with norms after the blocks, and of queries and keys over all heads."""

from dataclasses import replace
from typing import Any

from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.llama import LLAMA


def read(config: Config) -> dict[str, Any]:
    """Returns the hparams that are not simply entries of a config."""
    return {**llama.read(config), "qk_norm": "projection", "norm_position": "output"}


OLMO2 = replace(
    LLAMA,
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    read=read,
    written=llama.with_attention_bias,
    reads=(*llama.READS, "attention_bias"),
    defaults={
        **llama.DEFAULTS,
        "bos_token_id": None,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
    },
)
