"""Llama and its relatives: rotary positions, RMS norms, a gated network, grouped heads.

The functions of this file read and write what several types have: kinds of layers, scaled rotary
positions, norms of queries and keys, and norms before and after blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import (
    ACTIVATIONS,
    Config,
    ModelType,
    activation,
    canonical,
    kinds_of_layers,
    pattern_of,
    their_activation,
    token,
)
from t2tp.huggingface.tensor_map import Entry, dense

_GATED = {"silu": "swiglu", "gelu": "geglu"}
# For each type of scaling, its entries and our hparams.
_FACTOR = {"factor": "rotary_scaling_factor"}
_LENGTH = {"original_max_position_embeddings": "rotary_original_length"}
_SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": _FACTOR,
    "llama3": {
        **_FACTOR,
        "low_freq_factor": "rotary_low_freq_factor",
        "high_freq_factor": "rotary_high_freq_factor",
        **_LENGTH,
    },
    "yarn": {
        **_FACTOR,
        "beta_slow": "rotary_low_freq_factor",
        "beta_fast": "rotary_high_freq_factor",
        **_LENGTH,
        "attention_factor": "rotary_attention_factor",
    },
}
# Entries of yarn that configs leave out or set to null, and the values that these mean.
_YARN = {"beta_slow": 1.0, "beta_fast": 32.0, "attention_factor": 0.0}
_ROPE = ("rope_theta", "rope_type", "type")
_KINDS = {"full_attention": "full", "sliding_attention": "local"}
LAYER, BLOCK = "layer_{layer}", "model.layers.{layer}"

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
        **rotary(config),
        **window(config),
    }


def window(config: Config) -> dict[str, Any]:
    """Returns the hparams of a sliding window of all layers, if there is one."""
    size = config.get("sliding_window")
    return layers(config, ["full" if size is None else "local"] * config["num_hidden_layers"])


def layers(config: Config, kinds: Sequence[str]) -> dict[str, Any]:
    """Returns the hparams of layers of some kinds; see `t2tp.choices.LAYER_KINDS`."""
    size = config.get("sliding_window")
    if any(kind.startswith("local") for kind in kinds):
        return {**pattern_of(kinds), "attention_window": size}
    return pattern_of(kinds)


def layer_types(config: Config, defaults: Sequence[bool]) -> list[str]:
    """Returns the kind of each layer by `layer_types`.

    Args:
      config: the config.
      defaults: whether each layer has a window if there is no such entry.

    Raises:
      ConversionError: a layer is of another kind, or their number is not the model's.
    """
    if config.get("layer_types") is None:
        return ["local" if is_local else "full" for is_local in defaults]
    given = [str(each) for each in config["layer_types"]]
    others = sorted(set(given) - set(_KINDS))
    if others or len(given) != config["num_hidden_layers"]:
        raise ConversionError(
            f"config.json has layer_types {', '.join(given)}: t2tp has {' and '.join(_KINDS)}, and"
            f" needs one for each of {config['num_hidden_layers']} layers"
        )
    kinds = [_KINDS[each] for each in given]
    if "local" in kinds and config.get("sliding_window") is None:
        raise ConversionError("config.json has layers with a sliding window, and no sliding_window")
    return kinds


def written_layers(hparams: HParams, needed_window: int | None = None) -> dict[str, Any]:
    """Returns the entries of a config that say which layers have a sliding window.

    Args:
      hparams: the model's hparams.
      needed_window: default size of a type whose code in transformers makes a mask with a window
        even if no layer has one.
    """
    theirs = {ours: theirs for theirs, ours in _KINDS.items()}
    kinds = [kind.removesuffix("_nope") for kind in kinds_of_layers(hparams)]
    size = None
    if "local" in kinds or needed_window is not None:
        size = hparams.attention_window or needed_window
    return {"layer_types": [theirs[kind] for kind in kinds], "sliding_window": size}


def written(hparams: HParams) -> dict[str, Any]:
    """Returns the entries of a config that are not simply hparams."""
    activations = {gated: plain for plain, gated in _GATED.items()}
    config = {
        "num_key_value_heads": hparams.num_kv_heads or hparams.num_heads,
        "head_dim": hparams.d_kv,
        "hidden_act": their_activation(activations.get(hparams.mlp, hparams.mlp)),
        "bos_token_id": hparams.bos_token_id,
        # Some defaults are beyond small vocabularies, for which their models cannot be made.
        "pad_token_id": None,
        "rope_theta": hparams.rotary_base,
    }
    scaling = _written_scaling(hparams)
    return {**config, "rope_scaling": scaling} if scaling else config


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def with_attention_bias(hparams: HParams) -> dict[str, Any]:
    """Returns `written` and whether attention has biases."""
    return {**written(hparams), "attention_bias": canonical(hparams).attention_bias}


def tensors(hparams: HParams) -> list[Entry]:
    """Returns the entries of all tensors; see `tensor_map`."""

    def network(theirs: str, ours: str, into: str, out: str) -> list[Entry]:
        theirs, ours = f"{BLOCK}.mlp.{theirs}", f"{LAYER}/feed_forward/{ours}"
        return dense(theirs, ours, into, out, bias=canonical(hparams).mlp_bias)

    return [
        *around(hparams),
        *attention(hparams),
        *network("gate_proj", "gate", "d_model", "d_ff"),
        *network("up_proj", "input", "d_model", "d_ff"),
        *network("down_proj", "output", "d_ff", "d_model"),
        *norms(hparams),
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
    """Returns the entries of attention, with norms of queries and keys."""
    biases = canonical(hparams)
    theirs, ours = f"{BLOCK}.self_attn", f"{LAYER}/attention"
    found, has_bias = [], biases.attention_bias
    for name, heads in {"q": "heads", "k": "kv_heads", "v": "kv_heads"}.items():
        into = f"{theirs}.{name}_proj", f"{ours}/{name}", "d_model", f"{heads} d_kv"
        found += dense(*into, bias=has_bias or biases.qkv_bias)
        if hparams.qk_norm != "none" and name != "v":
            dims = "d_kv" if hparams.qk_norm == "head" else f"{heads} d_kv"
            scale = f"{ours}/{name}_norm/norm_scale"
            found.append(Entry(f"{theirs}.{name}_norm.weight", f"({dims})", scale, dims))
    out_of = f"{theirs}.o_proj", f"{ours}/output", "heads d_kv", "d_model"
    return [*found, *dense(*out_of, bias=has_bias)]


def norms(hparams: HParams, network: str = "feed_forward") -> list[Entry]:
    """Returns the entries of the norms around the blocks, whose names follow their position."""
    names = {
        "pre": ("input", "", "post_attention", ""),
        "output": ("post_attention", "", "post_feedforward", ""),
        "both": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
    }[hparams.norm_position]
    blocks = (f"{block}{end}" for block in ("attention", network) for end in ("", "/output_norm"))
    return [
        Entry(
            f"{BLOCK}.{name}_layernorm.weight", "d_model", f"{LAYER}/{ours}/norm_scale", "d_model"
        )
        for name, ours in zip(names, blocks, strict=True)
        if name
    ]


def _gated(config: Config) -> str:
    plain = activation(config, "hidden_act")
    if plain not in _GATED:
        known = (theirs for theirs, ours in ACTIVATIONS.items() if ours in _GATED)
        raise ConversionError(
            f"config.json has hidden_act={config['hidden_act']!r}: t2tp has gated networks with"
            f" {', '.join(known)}"
        )
    return _GATED[plain]


def rotary(config: Config, also: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the hparams of rotary positions, which newer configs have in one entry.

    Args:
      config: the config.
      also: further entries of rotary positions that the type reads.
    """
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    return _scaling({"rope_theta": config.get("rope_theta", 10000.0), **rope}, config, also)


def two_rotaries(config: Config, base: float, local_base: float) -> dict[str, Any]:
    """Returns the hparams of rotary positions that differ between kinds of layers.

    Args:
      config: the config.
      base: default base of layers without a window.
      local_base: default base of layers with one.

    Raises:
      ConversionError: layers with a window are scaled in another way than those without.
    """
    both = config.get("rope_parameters") or {}
    if others := sorted(set(both) - set(_KINDS)):
        raise ConversionError(
            f"config.json has rope_parameters of {', '.join(others)}: it must be of"
            f" {' and '.join(_KINDS)}"
        )
    full, local = (dict(both.get(kind) or {}) for kind in _KINDS)
    full = {"rope_theta": config.get("rope_theta", base), **full}
    full |= config.get("rope_scaling") or {}
    found = _scaling(full, config)
    of_local = _scaling({"rope_theta": local_base, **local}, config)
    if of_local == found:
        return {**found, "local_rotary_base": 0.0}
    if of_local["rotary_scaling_factor"] != 1:
        raise ConversionError(
            "config.json has scaled rotary positions of sliding_attention: t2tp has the same ones"
            " in all layers, or unscaled ones there"
        )
    return {**found, "local_rotary_base": of_local["rotary_base"]}


def written_rotaries(hparams: HParams) -> dict[str, Any]:
    """Returns the entry of rotary positions that differ between kinds of layers."""
    full = {"rope_type": "default", **_written_scaling(hparams), "rope_theta": hparams.rotary_base}
    local = {"rope_type": "default", "rope_theta": hparams.local_rotary_base}
    local = local if hparams.local_rotary_base else full
    return {"rope_parameters": dict(zip(_KINDS, (full, local), strict=True))}


def _scaling(rope: Mapping[str, Any], config: Config, also: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the hparams of base and scaling."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _SCALINGS:
        raise ConversionError(
            f"config.json has rope_type={kind!r}: t2tp has {', '.join(_SCALINGS)}"
        )
    ours = _SCALINGS[kind]
    for name, value in rope.items():
        is_known = name in (*_ROPE, *ours, *also) or (kind, name) == ("yarn", "truncate")
        if not is_known and value != {"partial_rotary_factor": 1.0}.get(name):
            raise ConversionError(
                f"config.json has {name}={value!r} for rotary positions of type {kind!r}, which"
                " t2tp does not support"
            )
    if kind == "default":
        return {"rotary_base": rope["rope_theta"], "rotary_scaling_factor": 1.0}
    given = {name: value for name, value in rope.items() if value is not None}
    defaults = {"original_max_position_embeddings": config["max_position_embeddings"], **_YARN}
    values = {name: given[name] if name in given else defaults[name] for name in ours}
    return {
        "rotary_base": rope["rope_theta"],
        "rotary_scaling": kind if rope.get("truncate", True) else "yarn_unrounded",
        **{ours[name]: value for name, value in values.items()},
    }


def _written_scaling(hparams: HParams) -> dict[str, Any]:
    """Returns the entry of scaled rotary positions; {}: they are not scaled."""
    if hparams.rotary_scaling_factor == 1:
        return {}
    kind, _, unrounded = hparams.rotary_scaling.partition("_")
    values = {theirs: hparams.get(ours) for theirs, ours in _SCALINGS[kind].items()}
    if not values.get("attention_factor", 1):
        del values["attention_factor"]
    return {"rope_type": kind, **values, **({"truncate": False} if unrounded else {})}


def with_biases(hparams: HParams) -> dict[str, Any]:
    """Returns `written` and which blocks have biases."""
    return {**with_attention_bias(hparams), "mlp_bias": canonical(hparams).mlp_bias}


LLAMA = ModelType(
    name="llama",
    architecture="LlamaForCausalLM",
    model="transformer_lm",
    hparams_set="transformer_lm_plain",
    problem="languagemodel_textfiles",
    same=SAME,
    read=read,
    written=with_biases,
    tensors=tensors,
    reads=(*READS, "attention_bias", "mlp_bias"),
    defaults={**DEFAULTS, "max_position_embeddings": 2048},
    required=REQUIRED,
    prefix="model.",
    ignored=r".*rotary_emb\.inv_freq",
)
