"""OLMo 3: OLMo 2 with a window in three of four layers, which have unscaled rotary positions."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama, olmo2
from t2tp.huggingface.model_types.olmo2 import OLMO2

_BASE, _WINDOW = 500_000.0, 4096


def _read(config: Config) -> dict[str, Any]:
    is_local = [(number + 1) % 4 > 0 for number in range(config["num_hidden_layers"])]
    plain = {**config, "rope_parameters": None, "rope_scaling": None}
    return {
        **olmo2.read(plain),
        # Their code applies the entry rope_theta to layers without a window alone.
        **llama.two_rotaries(config, _BASE, _BASE),
        **llama.layers(config, llama.layer_types(config, is_local)),
    }


def _written(hparams: HParams) -> dict[str, Any]:
    found = llama.with_attention_bias(hparams)
    for name in ("rope_theta", "rope_scaling"):
        found.pop(name, None)
    layers = llama.written_layers(hparams, _WINDOW)
    return {**found, **layers, **llama.written_rotaries(hparams)}


OLMO3 = replace(
    OLMO2,
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    read=_read,
    written=_written,
    reads=(*OLMO2.reads, "layer_types"),
    defaults={**OLMO2.defaults, "sliding_window": _WINDOW},
)
