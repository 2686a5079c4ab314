"""Phi-3: Mistral with joined matrices, and rotary positions of a part of each head."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import Config
from t2tp.huggingface.model_types import llama, mistral
from t2tp.huggingface.model_types.mistral import MISTRAL
from t2tp.huggingface.tensor_map import Entry, dense

_ATTENTION, _NETWORK = f"{llama.LAYER}/attention", f"{llama.LAYER}/feed_forward"
_FRACTION = "partial_rotary_factor"


def _read(config: Config) -> dict[str, Any]:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    plain = {**config, "rope_scaling": None, "rope_parameters": None}
    found = {**llama.read(plain), **llama.rotary(config, [_FRACTION])}
    fraction = float({_FRACTION: config[_FRACTION], **rope}[_FRACTION])
    is_even = 0 < fraction <= 1 and int(found["d_kv"] * fraction) % 2 == 0
    if not is_even or "rotary_scaling" in found:
        raise ConversionError(
            f"config.json has {_FRACTION}={fraction} and rope_scaling={rope}: of models of type"
            f" phi3, t2tp has those that turn an even number of the {found['d_kv']} elements of a"
            " head and have rope_type='default'"
        )
    return {**found, "rotary_fraction": fraction}


def _written(hparams: HParams) -> dict[str, Any]:
    return {**mistral.written(hparams), _FRACTION: hparams.rotary_fraction}


def _tensors(hparams: HParams) -> list[Entry]:
    heads = ("heads d_kv", "kv_heads d_kv", "kv_heads d_kv")
    qkv = f"{llama.BLOCK}.self_attn.qkv_proj.weight", f"({' + '.join(heads)}) d_model"
    gates = f"{llama.BLOCK}.mlp.gate_up_proj.weight", "(part d_ff) d_model"
    joined = (f"{_NETWORK}/gate", f"{_NETWORK}/input")
    output = f"{llama.BLOCK}.self_attn.o_proj", f"{_ATTENTION}/output", "heads d_kv", "d_model"
    down = f"{llama.BLOCK}.mlp.down_proj", f"{_NETWORK}/output", "d_ff", "d_model"
    return [
        *llama.around(hparams),
        *llama.norms(hparams),
        *(
            Entry(*qkv, f"{_ATTENTION}/{name}", f"d_model {dims}", term=number)
            for number, (name, dims) in enumerate(zip("qkv", heads, strict=True))
        ),
        *dense(*output, bias=False),
        Entry(*gates, joined, "d_model d_ff"),
        *dense(*down, bias=False),
    ]


PHI3 = replace(
    MISTRAL,
    name="phi3",
    architecture="Phi3ForCausalLM",
    same={**llama.SAME, "resid_pdrop": "layer_prepostprocess_dropout"},
    read=_read,
    written=_written,
    tensors=_tensors,
    without_effect=("original_max_position_embeddings", "embd_pdrop", "auto_map"),
    defaults=llama.DEFAULTS
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    | {"resid_pdrop": 0.0, "sliding_window": None, _FRACTION: 1.0},
    required={"is_causal": True},
)
