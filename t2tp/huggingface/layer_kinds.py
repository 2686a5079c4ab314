"""Kinds of layers in configs: layers with a sliding window, and layers without positions."""

from collections.abc import Sequence
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.part import Config, ConfigPart

_KINDS = {"full_attention": "full", "sliding_attention": "local"}
# The `sliding_window` that is written if no layer has a window. For some model types, transformers
# builds a mask with a window even then, so the entry must be a number.
_UNUSED_WINDOW = 4096


def kinds_of_layers(hparams: HParams) -> list[str]:
    """Returns the kind of each layer; see `t2tp.choices.LAYER_KINDS`."""
    pattern = hparams.layer_pattern or [hparams.attention_type]
    return [pattern[number % len(pattern)] for number in range(hparams.num_hidden_layers)]


def pattern_of(kinds: Sequence[str]) -> dict[str, Any]:
    """Returns the hparams for layers of these kinds, with the shortest pattern."""
    if set(kinds) in ({"full"}, {"local"}):
        return {"attention_type": kinds[0], "layer_pattern": []}
    lengths = range(1, len(kinds) + 1)
    period = next(n for n in lengths if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return {"attention_type": "full", "layer_pattern": list(kinds[:period])}


def _layers(config: Config, kinds: Sequence[str]) -> dict[str, Any]:
    """Returns the hparams for layers of these kinds, with the window's size."""
    if any(kind.startswith("local") for kind in kinds):
        return {**pattern_of(kinds), "attention_window": config.get("sliding_window")}
    return pattern_of(kinds)


def _layer_types(config: Config, defaults: Sequence[bool]) -> list[str]:
    """Returns the kind of each layer, from the entry `layer_types`.

    `defaults` says whether each layer has a window if the entry is missing.
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


def _written(hparams: HParams, unused_window: int | None) -> dict[str, Any]:
    theirs = {ours: theirs for theirs, ours in _KINDS.items()}
    kinds = [kind.removesuffix("_nope") for kind in kinds_of_layers(hparams)]
    size = hparams.attention_window if "local" in kinds else unused_window
    return {"layer_types": [theirs[kind] for kind in kinds], "sliding_window": size}


def _read_window(config: Config) -> dict[str, Any]:
    kind = "full" if config.get("sliding_window") is None else "local"
    return _layers(config, [kind] * config["num_hidden_layers"])


def _write_window(hparams: HParams) -> dict[str, Any]:
    is_local = hparams.attention_type == "local"
    return {"sliding_window": hparams.attention_window if is_local else None}


# For models in which all layers have a window, or none.
WINDOW = ConfigPart(("sliding_window",), _read_window, _write_window)


def _used_window(config: Config) -> int | None:
    return config.get("sliding_window") if config.get("use_sliding_window") else None


def _with_switch(entries: dict[str, Any]) -> dict[str, Any]:
    return {**entries, "use_sliding_window": entries["sliding_window"] is not None}


# Like WINDOW, but the window is ignored unless `use_sliding_window` is true.
SWITCHED_WINDOW = ConfigPart(
    ("sliding_window", "use_sliding_window"),
    lambda config: _read_window({**config, "sliding_window": _used_window(config)}),
    lambda hparams: _with_switch(_write_window(hparams)),
)


def _switched_types(config: Config, defaults: Sequence[bool]) -> list[str]:
    """Returns `_layer_types`, and checks that `use_sliding_window` does not contradict it."""
    kinds = _layer_types(config, defaults)
    if "local" in kinds and _used_window(config) is None:
        raise ConversionError(
            "config.json has layer_types with sliding_attention, and not use_sliding_window"
        )
    return kinds


def _read_last(config: Config) -> dict[str, Any]:
    has_window = _used_window(config) is not None
    numbers, first = range(config["num_hidden_layers"]), config["max_window_layers"]
    return _layers(config, _switched_types(config, [has_window and n >= first for n in numbers]))


# For models in which layers from `max_window_layers` on have a window.
WINDOW_OF_LAST_LAYERS = ConfigPart(
    ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers"),
    _read_last,
    lambda hparams: _with_switch(_written(hparams, None)),
)


def _window_except_every(period: int | str) -> ConfigPart:
    """Returns the part for models in which layers have a window, except each `period`-th layer.

    The period is a number, or the name of the config's entry with the number.
    """

    def read(config: Config) -> dict[str, Any]:
        size = config[period] if isinstance(period, str) else period
        numbers = range(1, config["num_hidden_layers"] + 1)
        return _layers(config, _layer_types(config, [number % size > 0 for number in numbers]))

    further = (period,) if isinstance(period, str) else ()
    return ConfigPart(
        ("layer_types", "sliding_window", *further),
        read,
        lambda hparams: _written(hparams, _UNUSED_WINDOW),
    )


WINDOW_EXCEPT_EVERY_2ND = _window_except_every(2)
WINDOW_EXCEPT_EVERY_4TH = _window_except_every(4)
GEMMA3_WINDOW = _window_except_every("sliding_window_pattern")


def _read_nope(config: Config) -> dict[str, Any]:
    count, interval = config["num_hidden_layers"], config["no_rope_layer_interval"]
    default = [int((number + 1) % interval != 0) for number in range(count)]
    has_rope = default if config.get("no_rope_layers") is None else config["no_rope_layers"]
    if len(has_rope) < count:
        raise ConversionError(
            f"config.json has no_rope_layers of {len(has_rope)} layers, and the model has {count}"
        )
    has_window = _used_window(config) is not None
    kinds = _switched_types(config, [has_window and not each for each in has_rope[:count]])
    kinds = [k if rope else f"{k}_nope" for k, rope in zip(kinds, has_rope, strict=False)]
    return _layers(config, kinds)


def _write_nope(hparams: HParams) -> dict[str, Any]:
    has_rope = [int(not kind.endswith("_nope")) for kind in kinds_of_layers(hparams)]
    return {**_with_switch(_written(hparams, None)), "no_rope_layers": has_rope}


# For models in which some layers have no positions. Such a layer may have a window.
LAYERS_WITHOUT_POSITIONS = ConfigPart(
    (
        *("layer_types", "sliding_window", "use_sliding_window"),
        *("no_rope_layers", "no_rope_layer_interval"),
    ),
    _read_nope,
    _write_nope,
)
