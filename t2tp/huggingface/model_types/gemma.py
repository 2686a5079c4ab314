"""Gemma: Llama with scaled, tied embeddings, norms of 1 + scale, and a GELU gate."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.llama import LLAMA


def _read(config: Config) -> dict[str, Any]:
    # Gemma's first configs have hidden_act "gelu", and all code takes the tanh form for it.
    tanh = {"gelu": "gelu_pytorch_tanh"}
    act = tanh.get(config["hidden_act"], config["hidden_act"])
    newer = config.get("hidden_activation") or act
    if newer != act:
        raise ConversionError(
            f"config.json has hidden_act={act!r} and hidden_activation={newer!r}: versions of"
            " transformers disagree which of them counts"
        )
    return {
        **llama.read({**config, "hidden_act": act}),
        "norm_type": "rms_unit_offset",
        "scale_embeddings": True,
    }


def _written(hparams: HParams) -> dict[str, Any]:
    return {
        **llama.with_attention_bias(hparams),
        "hidden_act": "gelu_pytorch_tanh" if hparams.mlp == "geglu" else "silu",
    }


GEMMA = replace(
    LLAMA,
    name="gemma",
    architecture="GemmaForCausalLM",
    read=_read,
    written=_written,
    reads=(*llama.READS, "attention_bias", "hidden_activation"),
    required={**llama.REQUIRED, "use_bidirectional_attention": False},
    defaults={
        **llama.DEFAULTS,
        "num_key_value_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "head_dim": 256,
    },
)
