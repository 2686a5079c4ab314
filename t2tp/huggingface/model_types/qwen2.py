"""Qwen2: Llama with biases of queries, keys and values, and a window in some layers."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.model_types.llama import LLAMA


def windows(config: Config) -> dict[str, Any]:
    """Returns the hparams of the windows, which only count with `use_sliding_window`.

    Raises:
      ConversionError: `layer_types` contradicts `use_sliding_window`.
    """
    numbers = range(config["num_hidden_layers"])
    size = config.get("sliding_window") if config.get("use_sliding_window") else None
    first = config["max_window_layers"]
    kinds = llama.layer_types(config, [size is not None and n >= first for n in numbers])
    if "local" in kinds and size is None:
        raise ConversionError(
            "config.json has layer_types with sliding_attention, and not use_sliding_window"
        )
    return llama.layers(config, kinds)


def written_windows(hparams: HParams) -> dict[str, Any]:
    """Returns the entries of a config that say which layers have a window."""
    entries = llama.written_layers(hparams)
    return {**entries, "use_sliding_window": entries["sliding_window"] is not None}


def _read(config: Config) -> dict[str, Any]:
    return {**llama.read(config), "qkv_bias": True, **windows(config)}


QWEN2 = replace(
    LLAMA,
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    read=_read,
    written=lambda hparams: {**llama.written(hparams), **written_windows(hparams)},
    reads=(*llama.READS, "layer_types", "use_sliding_window"),
    defaults={
        **llama.DEFAULTS,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "bos_token_id": None,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    required={**llama.REQUIRED, "use_mrope": False},
)
