"""Gemma 2: Gemma with norms after the blocks too, soft caps, and a window in every other layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config, canonical
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.gemma import GEMMA

_WINDOW = 4096


def read(config: Config, is_local: Sequence[bool]) -> dict[str, Any]:
    """Returns the hparams that are not simply entries of a config.

    Args:
      config: the config.
      is_local: whether each layer has a window, where `layer_types` does not say it.
    """
    return {
        **llama.read({**config, "hidden_act": config["hidden_activation"]}),
        **llama.layers(config, llama.layer_types(config, is_local)),
        "norm_type": "rms_unit_offset",
        "norm_position": "both",
        "scale_embeddings": True,
        "attention_multiplier": config["query_pre_attn_scalar"] ** -0.5,
        "logits_soft_cap": config["final_logit_softcapping"] or 0.0,
    }


def _read(config: Config) -> dict[str, Any]:
    is_local = [number % 2 == 0 for number in range(config["num_hidden_layers"])]
    cap = config["attn_logit_softcapping"] or 0.0
    return {**read(config, is_local), "attention_soft_cap": cap}


def written(hparams: HParams) -> dict[str, Any]:
    """Returns the entries of a config that are not simply hparams."""
    found = llama.with_attention_bias(hparams)
    scalar = round(canonical(hparams).attention_multiplier ** -2, 9)
    return {
        **found,
        **llama.written_layers(hparams, _WINDOW),
        "hidden_activation": found.pop("hidden_act").replace("gelu_new", "gelu_pytorch_tanh"),
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
        "final_logit_softcapping": hparams.logits_soft_cap or None,
        "attn_logit_softcapping": hparams.attention_soft_cap or None,
    }


GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    read=_read,
    written=written,
    reads=(*llama.READS, "attention_bias", "layer_types"),
    without_effect=("hidden_act", "cache_implementation"),
    defaults={
        **{name: value for name, value in GEMMA.defaults.items() if name != "hidden_act"},
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": _WINDOW,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
)
