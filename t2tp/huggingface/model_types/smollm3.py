"""SmolLM3: Llama without positions in some layers, which may have a window."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import Config, kinds_of_layers
from t2tp.huggingface.model_types import llama, qwen2
from t2tp.huggingface.model_types.llama import LLAMA


def _read(config: Config) -> dict[str, Any]:
    count, interval = config["num_hidden_layers"], config["no_rope_layer_interval"]
    default = [int((number + 1) % interval != 0) for number in range(count)]
    has_rope = default if config.get("no_rope_layers") is None else config["no_rope_layers"]
    if len(has_rope) < count:
        raise ConversionError(
            f"config.json has no_rope_layers of {len(has_rope)} layers, and the model has {count}"
        )
    uses_window = config.get("use_sliding_window") and config.get("sliding_window") is not None
    kinds = llama.layer_types(config, [bool(uses_window and not each) for each in has_rope[:count]])
    if "local" in kinds and not uses_window:
        raise ConversionError(
            "config.json has layer_types with sliding_attention, and not use_sliding_window"
        )
    kinds = [k if rope else f"{k}_nope" for k, rope in zip(kinds, has_rope, strict=False)]
    return {**llama.read(config), **llama.layers(config, kinds)}


def _written(hparams: HParams) -> dict[str, Any]:
    return {
        **llama.with_biases(hparams),
        **qwen2.written_windows(hparams),
        "no_rope_layers": [int(not kind.endswith("_nope")) for kind in kinds_of_layers(hparams)],
    }


SMOLLM3 = replace(
    LLAMA,
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    read=_read,
    written=_written,
    reads=(*LLAMA.reads, "layer_types", "use_sliding_window", "no_rope_layers"),
    without_effect=("max_window_layers",),
    defaults={
        **llama.DEFAULTS,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "bos_token_id": 128000,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
        "sliding_window": None,
        "no_rope_layer_interval": 4,
    },
)
