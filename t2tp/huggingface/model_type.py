"""A type of model: maps its `config.json` to our hparams, and its tensors to our variables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import t2tp.hparams  # noqa: F401  (its sets register themselves)
from t2tp import registry
from t2tp.building.transfer import Transfer
from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.layer_kinds import kinds_of_layers, pattern_of
from t2tp.huggingface.part import Config, ConfigPart, Shapes
from t2tp.huggingface.tensor_map import TensorRow
from t2tp.layers.positions import context_length
from t2tp.toml import read_packaged
from t2tp.typed_files import Schema, convert

# Entries that `ModelDirectory` adds to `config.json`: whether logits have a separate tensor; the
# tokenizer's mask token; and the image processor's mean and standard deviation of channels.
HAS_LOGITS = "has_logits"
MASK_TOKEN = "mask_token_id"
IMAGE_MEAN, IMAGE_STD = "image_mean", "image_std"
_FOUND = (HAS_LOGITS, MASK_TOKEN, IMAGE_MEAN, IMAGE_STD)

_ENTRIES = read_packaged("t2tp.huggingface", "config_entries.toml")
_JSON_TYPES: dict[str, Schema] = {
    **{"int": int, "str": str, "bool": bool, "float": float},
    **{"dict": dict[str, Any], "list": list[Any], "int or list": int | list[int]},
}
# The types of those entries whose values are converted by Python functions. These types are checked
# before the conversion, because the hparams check only the converted values.
_TYPES = {name: _JSON_TYPES[kind] for kind, names in _ENTRIES["types"].items() for name in names}
_NONE = object()
# hparam -> the hparam whose value 0 stands for
_DERIVED = {
    "num_kv_heads": "num_heads",
    "num_encoder_layers": "num_hidden_layers",
    "num_decoder_layers": "num_hidden_layers",
}


@dataclass(frozen=True)
class ModelType:
    """A type of model. `known_types` reads it from its table in `model_types/`.

    Attributes:
      name: `model_type` in the config.
      architecture: name of the class in transformers, as in the config's `architectures`.
      hparams_set: our hparams set, which provides a converted run's training hparams.
      problem: the default problem of a converted run.
      parts: the conversions of the architecture's hparams, in the order in which to set hparams.
      training: the conversions of the hparams that are not part of the architecture.
      entries: maps canonical hparams to the table of tensors.
      without_effect: entries that may have any value, because they do not change this type's logits
        in `transformers`. `config_entries.toml` lists such entries for all types. Unknown entries
        are rejected.
      defaults: values of entries that configs may lack.
      required: entry -> the only value that t2tp supports.
      logits: name of the tensor of logits, if it is not tied to the embedding.
      prefix: prefix of tensor names in files of the whole architecture. Files of the model without
        a head lack the prefix.
      ignored: regular expressions for names of tensors that are constants, copies of other tensors,
        or parts of other architectures.
      renamed: maps parts of tensor names in older files to the current parts.
      stands_in: maps names of tensors that files may lack to the names to read instead.
    """

    name: str
    architecture: str
    model: str
    hparams_set: str
    problem: str
    parts: Sequence[ConfigPart]
    training: Sequence[ConfigPart]
    entries: Callable[[HParams], Sequence[TensorRow]]
    without_effect: Sequence[str] = ()
    defaults: Config = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)
    logits: str = "lm_head.weight"
    prefix: str = ""
    ignored: Sequence[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    stands_in: Mapping[str, str] = field(default_factory=dict)

    def hparams(self, config: Config) -> HParams:
        """Returns the hparams of a model, or raises ConversionError for a wrong entry."""
        self._check(config)
        config = {**self.defaults, **config}
        hparams = registry.hparams(self.hparams_set)
        try:
            for part in (*self.parts, *self.training):
                _set(hparams, part.read(config))
        except KeyError as error:
            raise ConversionError(
                f"config.json has no {error}, which a model of type {self.name} needs"
            ) from error
        except (ZeroDivisionError, TypeError) as error:
            raise ConversionError(
                "config.json has a 0 or null where a model of type"
                f" {self.name} needs another value ({error})"
            ) from error
        return hparams

    def tensors(self, hparams: HParams) -> Sequence[TensorRow]:
        """Returns the table of the tensors; see `tensor_map`."""
        return self.entries(canonical(hparams))

    def completed(self, hparams: HParams, shapes: Shapes) -> HParams:
        """Returns a copy in which the shapes of variables determine hparams that are not set.

        Raises:
          ConversionError: a variable is missing.
        """
        completed = hparams.copy()
        try:
            found = _joined(part.from_shapes(shapes) for part in self.parts)
        except KeyError as error:
            raise ConversionError(f"the checkpoint has no variable {error}") from error
        for name, value in found.items():
            if not completed.get(name):
                completed.set(name, value)
        if completed.values().get("vocab_size") == 0:
            tables = [e.ours for e in self.tensors(completed) if e.our_dims.startswith("vocab ")]
            sizes = [shapes[name][0] for name in tables if isinstance(name, str) and name in shapes]
            completed.vocab_size = max(sizes, default=0)
        return completed

    def config(self, hparams: HParams) -> dict[str, Any]:
        """Returns a config from which `self.hparams` returns the same architecture.

        Raises:
          ConversionError: no model of this type has the hparams' architecture.
        """
        config = self._nearest_config(hparams)
        different = self.different(config, hparams)
        if different:
            name, of_type = next(iter(different.items()))
            raise ConversionError(
                f"models of type {self.name} have {name}={of_type}, and the run has"
                f" {canonical(hparams).get(name)}: name another type with --model_type"
            )
        return config

    def obstacles(self, hparams: HParams) -> dict[str, Any]:
        """Returns the hparams, with their values, that no model of this type has.

        The result is not empty for hparams whose values cannot be written in a config.
        """
        try:
            config = self._nearest_config(hparams)
        except ConversionError:  # Only the shape of images can be missing.
            return {"image_shape": hparams.get("image_shape")}
        try:
            different = self.different(config, hparams)
        except ConversionError:  # Only activations have names that a type may lack.
            different = {"mlp": None}
        return {name: canonical(hparams).get(name) for name in different}

    def _nearest_config(self, hparams: HParams) -> dict[str, Any]:
        """Returns a config with the hparams for which this type has entries."""
        ours = canonical(hparams)
        return {
            "architectures": [self.architecture],
            "model_type": self.name,
            **{name: v for name, v in self.required.items() if not isinstance(v, bool)},
            **_joined(part.write(ours) for part in self.parts),
        }

    def changed(self, config: Config, hparams: HParams) -> dict[str, Any]:
        """Returns a config with the architecture of `hparams`; other entries stay as they are.

        Raises:
          ConversionError: no model of this type has the hparams' architecture.
        """
        before, after = self.config(self.hparams(config)), self.config(hparams)
        kept = {
            name: value for name, value in config.items() if name in after or name not in before
        }
        new = {name: value for name, value in after.items() if before.get(name, _NONE) != value}
        changed = {**kept, **new}
        if not self.different(changed, hparams):
            return changed
        # A kept entry may mean something else now, if it depends on a changed entry.
        read = self._entries(self.parts)
        return {name: value for name, value in kept.items() if name not in read} | after

    def different(self, config: Config, hparams: HParams) -> dict[str, Any]:
        """Compares the config's architecture with `hparams`.

        Returns the hparams that differ and belong to the architecture, with the config's values.
        """
        of_config, of_run = canonical(self.hparams(config)), canonical(hparams)
        names = set(_joined(part.read({**self.defaults, **config}) for part in self.parts))
        names |= {name for name in _ENTRIES["switches"] if name in of_config}
        if "use_bias" in names:
            names |= {"attention_bias", "qkv_bias", "mlp_bias"}
        return {
            name: of_config.get(name)
            for name in sorted(names)
            if of_config.get(name) != of_run.get(name)
        }

    def sizes(self, hparams: HParams) -> dict[str, int]:
        """Returns the sizes of dimensions, and the numbers of layers and experts."""
        values = hparams.values()
        return {
            "vocab": values.get("vocab_size", 0),
            "max_length": context_length(hparams),
            "d_model": hparams.d_model,
            "d_model_out": hparams.d_model,
            "d_ff": hparams.d_ff,
            "heads": hparams.num_heads,
            "kv_heads": values.get("num_kv_heads") or hparams.num_heads,
            "d_kv": hparams.d_kv,
            "layer": hparams.num_hidden_layers,
            "encoder_layer": values.get("num_encoder_layers") or hparams.num_hidden_layers,
            "decoder_layer": values.get("num_decoder_layers") or hparams.num_hidden_layers,
            "experts": values.get("num_experts", 0),
            "router_experts": values.get("num_experts", 0),
            "expert": values.get("num_experts", 0),
            "relative_buckets": values.get("relative_buckets", 0),
            "token_types": values.get("token_types", 0),
            "classes": values.get("num_classes", 0),
            **_image_sizes(values),
        }

    def _check(self, config: Config) -> None:
        """Checks that t2tp supports every entry and its value."""
        convert(config, _TYPES, "config.json")
        for name, value in {"is_encoder_decoder": False, **self.required}.items():
            found = config.get(name, value)
            if found != value and not (found is None and value is False):
                raise ConversionError(
                    f"config.json has {name}={found!r}: of models of type {self.name}, t2tp"
                    f" supports those with {value!r}"
                )
        known = self._entries((*self.parts, *self.training))
        known |= {*self.required, *self.defaults, *_FOUND, "is_encoder_decoder"}
        idle = {*_ENTRIES["without_effect"], *self.without_effect}
        for name in sorted(config.keys() - known - idle):
            if config[name] is not None:
                raise ConversionError(
                    f"config.json has {name}={str(config[name])[:80]}, an entry that t2tp does not"
                    f" know of models of type {self.name}: remove it if their code does not read it"
                )

    def _entries(self, parts: Sequence[ConfigPart]) -> set[str]:
        return {name for part in parts for name in part.entries}


def _joined(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for table in tables for name, value in table.items()}


def _set(hparams: HParams, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        try:
            hparams.set(name, value)
        except (ValueError, TypeError) as error:
            raise ConversionError(f"config.json does not fit: {error}") from error


def _image_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes of an image model's patches and sequence; {} for other models."""
    if not values.get("image_shape") or "patch_size" not in values:
        return {}
    height, width, channels = values["image_shape"]
    size = values["patch_size"]
    return {
        "kernel_height": size,
        "kernel_width": size,
        "channels": channels,
        "length": (height // size) * (width // size) + (values["pooling"] == "class"),
    }


def canonical(hparams: HParams) -> HParams:
    """Normalizes hparams, so that equal architectures have equal hparams.

    `use_bias` is replaced by `attention_bias`, `mlp_bias` and `qkv_bias`. If `attention_bias` is
    set, `qkv_bias` is false. The pattern of layers is the shortest equivalent one. An
    `attention_multiplier` of 0 means 1 / sqrt(d_kv), and is replaced by this number. `d_v` is 0 if
    it equals `d_kv`. `num_kv_heads` and the numbers of layers are never 0.
    `context_length` is at least `max_length`. `moe_gating=top_2` is a case of `top_k`. The scales
    of `transfer_from` are moved to other hparams.
    """
    transfer = Transfer.from_hparams(hparams)
    if transfer is not None and "logits_divisor" in hparams:
        hparams = transfer.resolved()
    result = hparams.copy()
    if "context_length" in hparams:
        result.context_length = context_length(hparams)
    for name, derived in _DERIVED.items():
        if name in hparams:
            result.set(name, hparams.get(name) or hparams.get(derived))
    if "use_bias" in hparams:
        result.attention_bias = hparams.use_bias or hparams.attention_bias
        result.mlp_bias = hparams.use_bias or hparams.mlp_bias
        result.qkv_bias = hparams.qkv_bias and not result.attention_bias
        result.use_bias = False
    if hparams.values().get("moe_gating") == "top_2":
        result.moe_gating, result.moe_top_k, result.moe_normalize_gates = "top_k", 2, True
    if "layer_pattern" in hparams:
        result.attention_multiplier = hparams.attention_multiplier or hparams.d_kv**-0.5
        result.d_v = 0 if hparams.d_v == hparams.d_kv else hparams.d_v
        for name, value in pattern_of(kinds_of_layers(hparams)).items():
            result.set(name, value)
    return result
