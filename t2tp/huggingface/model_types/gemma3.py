"""Gemma 3 (texts): Gemma 2 with norms of queries and keys, and two bases of rotary positions."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import gemma2, llama
from t2tp.huggingface.model_types.gemma2 import GEMMA2


def _read(config: Config) -> dict[str, Any]:
    period = config["sliding_window_pattern"]
    is_local = [(number + 1) % period > 0 for number in range(config["num_hidden_layers"])]
    plain = {**config, "rope_parameters": None, "rope_scaling": None}
    return {
        **gemma2.read(plain, is_local),
        **llama.two_rotaries(config, 1e6, config["rope_local_base_freq"]),
        "qk_norm": "head",
    }


def _written(hparams: HParams) -> dict[str, Any]:
    found = gemma2.written(hparams)
    for name in ("rope_theta", "rope_scaling", "attn_logit_softcapping"):
        found.pop(name, None)
    return {**found, **llama.written_rotaries(hparams)}


GEMMA3 = replace(
    GEMMA2,
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    read=_read,
    written=_written,
    # Their attention does not read its soft cap.
    without_effect=(*GEMMA2.without_effect, *("attn_logit_softcapping", "_sliding_window_pattern")),
    defaults={
        **{name: v for name, v in GEMMA2.defaults.items() if name != "attn_logit_softcapping"},
        "max_position_embeddings": 131072,
        "final_logit_softcapping": None,
        "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6,
    },
)
