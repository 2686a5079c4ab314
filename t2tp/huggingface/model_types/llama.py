"""Llama and its relatives: rotary positions, RMS norms, a gated network, grouped heads."""

from __future__ import annotations

from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import (
    ACTIVATIONS,
    Config,
    ModelType,
    activation,
    biases_apart,
    their_activation,
    token,
)
from t2tp.huggingface.tensor_map import Entry, dense

_GATED = {"silu": "swiglu", "gelu": "geglu"}
_LLAMA3 = {
    "factor": "rotary_scaling_factor",
    "low_freq_factor": "rotary_low_freq_factor",
    "high_freq_factor": "rotary_high_freq_factor",
    "original_max_position_embeddings": "rotary_original_length",
}
_ROPE = ("rope_theta", "rope_type", "type", "partial_rotary_factor")
_LAYER, _BLOCK = "layer_{layer}", "model.layers.{layer}"

SAME = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_length",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tie_embeddings",
    "attention_dropout": "attention_dropout",
}
DEFAULTS = {
    "bos_token_id": 1,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
}
READS = ("num_key_value_heads", "head_dim", "rope_parameters", "rope_scaling", "rope_theta")
REQUIRED = {"is_causal": True, "partial_rotary_factor": 1.0}


def read(config: Config) -> dict[str, Any]:
    """Returns the hparams that are not simply entries of a config."""
    heads = config["num_attention_heads"]
    return {
        "num_kv_heads": _or(config.get("num_key_value_heads"), heads),
        "d_kv": _or(config.get("head_dim"), config["hidden_size"] // heads),
        "mlp": _gated(config),
        "use_bias": False,
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "qkv_bias": False,
        "bos_token_id": token(config["bos_token_id"]),
        "norm_type": "rms",
        "norm_position": "pre",
        "position": "rotary",
        "scale_embeddings": False,
        **_rotary(config),
        **window(config),
    }


def window(config: Config) -> dict[str, Any]:
    """Returns the hparams of a sliding window, if there is one."""
    size = config.get("sliding_window")
    if size is None:
        return {"attention_type": "full"}
    return {"attention_type": "local", "attention_window": size}


def written(hparams: HParams) -> dict[str, Any]:
    """Returns the entries of a config that are not simply hparams."""
    activations = {gated: plain for plain, gated in _GATED.items()}
    config = {
        "num_key_value_heads": hparams.num_kv_heads or hparams.num_heads,
        "head_dim": hparams.d_kv,
        "hidden_act": their_activation(activations.get(hparams.mlp, hparams.mlp)),
        "bos_token_id": hparams.bos_token_id,
        "rope_theta": hparams.rotary_base,
    }
    if hparams.rotary_scaling_factor != 1:
        scaling = {theirs: hparams.get(ours) for theirs, ours in _LLAMA3.items()}
        config["rope_scaling"] = {"rope_type": "llama3", **scaling}
    return config


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def tensors(hparams: HParams) -> list[Entry]:
    """Returns the entries of all tensors; see `tensor_map`."""

    def network(theirs: str, ours: str, into: str, out: str) -> list[Entry]:
        theirs, ours = f"{_BLOCK}.mlp.{theirs}", f"{_LAYER}/feed_forward/{ours}"
        return dense(theirs, ours, into, out, bias=biases_apart(hparams).mlp_bias)

    return [
        *around(hparams),
        *attention(hparams),
        *network("gate_proj", "gate", "d_model", "d_ff"),
        *network("up_proj", "input", "d_model", "d_ff"),
        *network("down_proj", "output", "d_ff", "d_model"),
        norm("post_attention_layernorm", "feed_forward"),
    ]


def around(hparams: HParams) -> list[Entry]:
    """Returns the entries of the tensors outside of layers: embedding, final norm and logits."""
    rows = "vocab d_model"
    logits = [Entry("lm_head.weight", rows, "output_embedding", rows)]
    return [
        Entry("model.embed_tokens.weight", rows, "embedding", rows),
        Entry("model.norm.weight", "d_model", "final/norm_scale", "d_model"),
        *([] if hparams.tie_embeddings else logits),
    ]


def attention(hparams: HParams) -> list[Entry]:
    """Returns the entries of attention and its norm."""
    biases = biases_apart(hparams)
    theirs, ours = f"{_BLOCK}.self_attn", f"{_LAYER}/attention"
    found, has_bias = [norm("input_layernorm", "attention")], biases.attention_bias
    for name, heads in {"q": "heads", "k": "kv_heads", "v": "kv_heads"}.items():
        into = f"{theirs}.{name}_proj", f"{ours}/{name}", "d_model", f"{heads} d_kv"
        found += dense(*into, bias=has_bias or biases.qkv_bias)
    out_of = f"{theirs}.o_proj", f"{ours}/output", "heads d_kv", "d_model"
    return [*found, *dense(*out_of, bias=has_bias)]


def norm(theirs: str, block: str) -> Entry:
    """Returns the entry of a block's norm."""
    return Entry(f"{_BLOCK}.{theirs}.weight", "d_model", f"{_LAYER}/{block}/norm_scale", "d_model")


def _gated(config: Config) -> str:
    plain = activation(config, "hidden_act")
    if plain not in _GATED:
        known = (theirs for theirs, ours in ACTIVATIONS.items() if ours in _GATED)
        raise ConversionError(
            f"config.json has hidden_act={config['hidden_act']!r}: t2tp has gated networks with"
            f" {', '.join(known)}"
        )
    return _GATED[plain]


def _rotary(config: Config) -> dict[str, Any]:
    """Returns the hparams of rotary positions, which newer configs have in one entry."""
    scaling = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    base = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ConversionError(
            f"config.json has rope_type={kind!r}: t2tp has 'default' and 'llama3'"
        )
    known = (*_ROPE, *_LLAMA3) if kind == "llama3" else _ROPE
    for name, value in scaling.items():
        if name not in known or (name == "partial_rotary_factor" and value != 1.0):
            raise ConversionError(
                f"config.json has {name}={value!r} for rotary positions of type {kind!r}, which"
                " t2tp does not support"
            )
    if kind == "default":
        return {"rotary_base": base, "rotary_scaling_factor": 1.0}
    return {"rotary_base": base, **{ours: scaling[theirs] for theirs, ours in _LLAMA3.items()}}


def _written_llama(hparams: HParams) -> dict[str, Any]:
    biases = biases_apart(hparams)
    return {
        **written(hparams),
        "attention_bias": biases.attention_bias,
        "mlp_bias": biases.mlp_bias,
    }


LLAMA = ModelType(
    name="llama",
    architecture="LlamaForCausalLM",
    model="transformer_lm",
    hparams_set="transformer_lm_base",
    problem="languagemodel_textfiles",
    same=SAME,
    read=read,
    written=_written_llama,
    tensors=tensors,
    reads=(*READS, "attention_bias", "mlp_bias"),
    defaults={**DEFAULTS, "max_position_embeddings": 2048},
    required=REQUIRED,
    prefix="model.",
    ignored=r".*rotary_emb\.inv_freq",
)
