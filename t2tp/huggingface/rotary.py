"""Reads and writes the rotary positions in configs: base and scaling, also by kind of layer."""

from collections.abc import Mapping
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.part import Config, ConfigPart
from t2tp.huggingface.values import HEAD_SIZE

# Scaling type -> config entry -> hparam.
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
# Defaults of yarn's optional entries.
_YARN = {"beta_slow": 1.0, "beta_fast": 32.0, "attention_factor": 0.0}
_GPT_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_FRACTION = "partial_rotary_factor"
_ENTRIES = ("rope_parameters", "rope_scaling", "rope_theta", _FRACTION)
# Kinds of layers in `rope_parameters`.
_KINDS = ("full_attention", "sliding_attention")


def _rope(config: Config, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the entries of rotary positions. Newer configs nest them in one entry."""
    fraction = config.get(_FRACTION, 1.0)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or default or {}
    return {"rope_theta": config.get("rope_theta", 10000.0), _FRACTION: fraction, **rope}


def _write(hparams: HParams) -> dict[str, Any]:
    scaling = _written_scaling(hparams)
    return {"rope_theta": hparams.rotary_base, **({"rope_scaling": scaling} if scaling else {})}


def _write_gpt_oss(hparams: HParams) -> dict[str, Any]:
    # A gpt_oss config without rope_scaling means yarn, so unscaled positions need the entry too.
    return {"rope_scaling": {"rope_type": "default"}, **_write(hparams)}


def _read_partial(config: Config) -> dict[str, Any]:
    rope, size = _rope(config), HEAD_SIZE.read(config, "head_dim")
    fraction = float(rope.pop(_FRACTION) or 0)
    found = _scaling(rope, config)
    is_even = 0 < fraction <= 1 and int(size * fraction) % 2 == 0
    if not is_even or "rotary_scaling" in found:
        raise ConversionError(
            f"config.json has {_FRACTION}={fraction} and rope_scaling={rope}: t2tp supports phi3"
            f" only with rope_type='default' and an even number of rotated elements of a head, of"
            f" {size}"
        )
    return {**found, "rotary_fraction": fraction}


def _by_kind(base: float, local_base: float | str) -> ConfigPart:
    """Returns the `ConfigPart` for models whose kinds of layers have different rotary positions.

    `base` is the default base of layers without a window. `local_base` is the default base of
    layers with a window, or the name of the config's entry with this base.
    """

    def read(config: Config) -> dict[str, Any]:
        both = config.get("rope_parameters") or {}
        if others := sorted(set(both) - set(_KINDS)):
            raise ConversionError(
                f"config.json has rope_parameters of {', '.join(others)}: it must be of"
                f" {' and '.join(_KINDS)}"
            )
        full, local = (dict(both.get(kind) or {}) for kind in _KINDS)
        fraction = {_FRACTION: config.get(_FRACTION, 1.0)}
        # In transformers, rope_theta and rope_scaling apply only to layers without a window.
        full = {"rope_theta": config.get("rope_theta", base), **fraction, **full}
        full |= config.get("rope_scaling") or {}
        found = _scaling(full, config)
        local_theta = config[local_base] if isinstance(local_base, str) else local_base
        local = _scaling({"rope_theta": local_theta, **fraction, **local}, config)
        if local == found:
            return {**found, "local_rotary_base": 0.0}
        if local["rotary_scaling_factor"] != 1:
            raise ConversionError(
                "config.json scales the rotary positions of sliding_attention: t2tp supports that"
                " only if full_attention has the same ones"
            )
        return {**found, "local_rotary_base": local["rotary_base"]}

    further = (local_base,) if isinstance(local_base, str) else ()
    return ConfigPart((*_ENTRIES, *further), read, _write_both)


def _write_both(hparams: HParams) -> dict[str, Any]:
    full = {"rope_type": "default", **_written_scaling(hparams), "rope_theta": hparams.rotary_base}
    local = {"rope_type": "default", "rope_theta": hparams.local_rotary_base}
    local = local if hparams.local_rotary_base else full
    return {"rope_parameters": dict(zip(_KINDS, (full, local), strict=True))}


def _scaling(rope: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Converts the entries of rotary positions to hparams."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _SCALINGS:
        raise ConversionError(
            f"config.json has rope_type={kind!r}: t2tp has {', '.join(_SCALINGS)}"
        )
    ours = _SCALINGS[kind]
    for name, value in rope.items():
        is_known = name in ("rope_theta", "rope_type", "type", *ours)
        is_known |= (name, value) == (_FRACTION, 1.0) or (kind, name) == ("yarn", "truncate")
        if not is_known and value is not None:
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
    """Returns the entry of scaled rotary positions; {} if they are not scaled."""
    if hparams.rotary_scaling_factor == 1:
        return {}
    kind, _, unrounded = hparams.rotary_scaling.partition("_")
    values = {theirs: hparams.get(ours) for theirs, ours in _SCALINGS[kind].items()}
    if not values.get("attention_factor", 1):
        del values["attention_factor"]
    return {"rope_type": kind, **values, **({"truncate": False} if unrounded else {})}


ROTARY = ConfigPart(_ENTRIES, lambda config: _scaling(_rope(config), config), _write)
PARTIAL_ROTARY = ConfigPart(
    _ENTRIES, _read_partial, lambda hparams: {**_write(hparams), _FRACTION: hparams.rotary_fraction}
)
GPT_OSS_ROTARY = ConfigPart(
    _ENTRIES, lambda config: _scaling(_rope(config, _GPT_OSS), config), _write_gpt_oss
)
OLMO3_ROTARY = _by_kind(500_000.0, 500_000.0)
GEMMA3_ROTARY = _by_kind(1e6, "rope_local_base_freq")
