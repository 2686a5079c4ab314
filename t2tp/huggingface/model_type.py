"""A type of model: its `config.json` and our hparams, its tensors and our variables."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import t2tp.hparams  # noqa: F401  (its sets register themselves)
from t2tp import registry
from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.tensor_map import Entry
from t2tp.suggestions import check_known
from t2tp.toml import read_packaged
from t2tp.untrusted_json import check_types

Config = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]

# Entries that are not in the file: whether logits have a tensor of their own; the token that masks
# others, by the tokenizer; and mean and standard deviation of the channels of images, by the image
# processor.
HAS_LOGITS = "has_logits"
MASK_TOKEN = "mask_token_id"
IMAGE_MEAN, IMAGE_STD = "image_mean", "image_std"
_FOUND = (HAS_LOGITS, MASK_TOKEN, IMAGE_MEAN, IMAGE_STD)

# Types of the entries that `read` and `training` use.
_TYPES: dict[type | tuple[type, ...], str] = {
    int: "num_key_value_heads head_dim n_inner num_labels num_layers num_decoder_layers"
    " decoder_start_token_id sliding_window num_local_experts num_channels max_window_layers"
    " no_rope_layer_interval sliding_window_pattern",
    str: "hidden_act hidden_activation activation_function feed_forward_proj dense_act_fn"
    " problem_type",
    bool: "attention_bias mlp_bias output_router_logits is_gated_act scale_decoder_outputs"
    " tie_word_embeddings use_sliding_window",
    float: "rope_theta router_aux_loss_coef rope_local_base_freq query_pre_attn_scalar"
    " attention_multiplier final_logit_softcapping attn_logit_softcapping partial_rotary_factor",
    dict: "rope_parameters rope_scaling id2label",
    list: "layer_types no_rope_layers",
    (int, list): "image_size patch_size bos_token_id",
}

# Entries that change no logits of any type.
_WITHOUT_EFFECT = read_packaged("t2tp.huggingface", "config_entries.toml")["without_effect"]
# Entries of newer configs that replace several older ones, and these.
_ROTARY = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")
# Hparams of architectures that have their default value in types that do not set them.
_SWITCHES = (
    *("layer_pattern", "qk_norm", "attention_soft_cap", "attention_sinks", "d_v"),
    *("attention_type", "attention_multiplier", "local_rotary_base", "rotary_fraction"),
    *("embedding_multiplier", "residual_multiplier", "logits_divisor", "logits_soft_cap"),
    *("moe_router_scores", "moe_router_bias", "moe_balance_rate", "moe_shared_d_ff"),
    *("moe_gate_scale", "moe_router_groups"),
)
_NONE = object()
_ONE_CLASS = "single_label_classification"

# Activations in configs, and our names. We write the first name of each.
ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu_erf",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class ModelType:
    """A type of model.

    Attributes:
      name: `model_type` in the config.
      architecture: the class in `architectures` whose tensors the table has.
      model: our registered model.
      hparams_set: our set, whose training hparams a converted run has.
      problem: the problem of a converted run, unless another is named.
      same: entries of the config, and the hparams with the same value.
      training: hparams apart from the architecture, from the config.
      reads: names of further entries that `read` and `training` use.
      without_effect: entries that change no logits in `transformers`, in addition to those that
        change none of any type. Every other entry is refused.
      defaults: values of entries that older configs lack.
      required: the values that entries must have, because t2tp supports no others.
      logits: the name of the tensor that logits have if they are not tied to the embedding.
      read: further hparams from the config.
      written: further entries of the config from the hparams.
      tensors: the table, which may depend on the hparams.
      prefix: prefix of names in files of the whole architecture; files of the plain model lack it.
      ignored: a regular expression for tensors that are constants, copies of others, or parts of
        other architectures.
      renamed: parts of names in older files, and their names of today.
      stands_in: names of tensors that files may lack, and the name to read instead.
      from_shapes: hparams that a run may leave to its problem, from the shapes of variables.
    """

    name: str
    architecture: str
    model: str
    hparams_set: str
    problem: str
    same: Mapping[str, str]
    read: Callable[[Config], dict[str, Any]]
    written: Callable[[HParams], dict[str, Any]]
    tensors: Callable[[HParams], Sequence[Entry]]
    training: Callable[[Config], dict[str, Any]] = lambda config: {}
    reads: Collection[str] = ()
    without_effect: Collection[str] = ()
    defaults: Config = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)
    logits: str = "lm_head.weight"
    prefix: str = ""
    ignored: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    stands_in: Mapping[str, str] = field(default_factory=dict)
    from_shapes: Callable[[Shapes], dict[str, Any]] = lambda shapes: {}

    def hparams(self, config: Config) -> HParams:
        """Returns the hparams of a model.

        Raises:
          ConversionError: an entry is missing, or has a value that t2tp has nothing for.
        """
        self._check(config)
        config = {**self.defaults, **config}
        hparams = registry.hparams(self.hparams_set)
        try:
            # First the sizes, which `read` divides by others.
            _set(hparams, {ours: config[theirs] for theirs, ours in self.same.items()})
            _set(hparams, self.read(config) | self.training(config))
        except KeyError as error:
            raise ConversionError(
                f"config.json has no {error}, which a model of type {self.name} needs"
            ) from error
        return hparams

    def completed(self, hparams: HParams, shapes: Shapes) -> HParams:
        """Completes hparams that leave values to the problem, from the shapes of variables.

        Raises:
          ConversionError: a variable is missing.
        """
        completed = hparams.copy()
        try:
            found = self.from_shapes(shapes)
        except KeyError as error:
            raise ConversionError(f"the checkpoint has no variable {error}") from error
        for name, value in found.items():
            if not completed.get(name):
                completed.set(name, value)
        return completed

    def config(self, hparams: HParams) -> dict[str, Any]:
        """Returns the config of a model; `hparams` of it are the same architecture.

        Raises:
          ConversionError: no model of this type has the hparams' architecture.
        """
        config = {
            "architectures": [self.architecture],
            "model_type": self.name,
            **{name: v for name, v in self.required.items() if not isinstance(v, bool)},
            **{theirs: hparams.get(ours) for theirs, ours in self.same.items()},
            **self.written(hparams),
        }
        different = self.different(config, hparams)
        if different:
            name, of_type = next(iter(different.items()))
            raise ConversionError(
                f"models of type {self.name} have {name}={of_type}, and the run has"
                f" {hparams.get(name)}: name another type with --model_type"
            )
        return config

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
        # An entry is read in the light of another one, which has changed.
        return {name: value for name, value in kept.items() if name not in _ROTARY} | after

    def different(self, config: Config, hparams: HParams) -> dict[str, Any]:
        """Returns the hparams of a config's architecture that differ from given ones, by name."""
        of_config, of_run = canonical(self.hparams(config)), canonical(hparams)
        names = {*self.same.values(), *self.read({**self.defaults, **config})}
        names |= {name for name in _SWITCHES if name in of_config}
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
            "max_length": hparams.max_length,
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
        """Checks that every entry is known, of its type, and has a value that t2tp supports."""
        for kind, names in _TYPES.items():
            check_types(config, "config.json", dict.fromkeys(names.split(), kind))
        for name, value in {"is_encoder_decoder": False, **self.required}.items():
            found = config.get(name, value)
            if found != value and not (found is None and value is False):
                raise ConversionError(
                    f"config.json has {name}={found!r}: of models of type {self.name}, t2tp"
                    f" supports those with {value!r}"
                )
        known = {*self.same, *self.reads, *self.required, *self.defaults, *_FOUND}
        known.add("is_encoder_decoder")
        idle = {*_WITHOUT_EFFECT, *self.without_effect}
        for name in sorted(config.keys() - known - idle):
            if config[name] is not None:
                raise ConversionError(
                    f"config.json has {name}={str(config[name])[:80]}, an entry that t2tp does not"
                    f" know of models of type {self.name}: remove it if their code does not read it"
                )


def _set(hparams: HParams, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        try:
            hparams.set(name, value)
        except (ValueError, TypeError) as error:
            raise ConversionError(f"config.json does not fit: {error}") from error


def _image_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes of dimensions of a model of images: of its patches, with a class token."""
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
    """Returns hparams that are equal if the architectures are.

    `use_bias` is expressed by the other three flags of biases, and `attention_bias` includes
    `qkv_bias`, which is then false. The pattern of layers is the shortest one, and the multiplier
    of attention is not 0.
    """
    result = hparams.copy()
    if "use_bias" in hparams:
        result.attention_bias = hparams.use_bias or hparams.attention_bias
        result.mlp_bias = hparams.use_bias or hparams.mlp_bias
        result.qkv_bias = hparams.qkv_bias and not result.attention_bias
        result.use_bias = False
    if "layer_pattern" in hparams:
        result.attention_multiplier = hparams.attention_multiplier or hparams.d_kv**-0.5
        result.d_v = 0 if hparams.d_v == hparams.d_kv else hparams.d_v
        for name, value in pattern_of(kinds_of_layers(hparams)).items():
            result.set(name, value)
    return result


def kinds_of_layers(hparams: HParams) -> list[str]:
    """Returns the kind of each layer; see `t2tp.choices.LAYER_KINDS`."""
    pattern = hparams.layer_pattern or [hparams.attention_type]
    return [pattern[number % len(pattern)] for number in range(hparams.num_hidden_layers)]


def pattern_of(kinds: Sequence[str]) -> dict[str, Any]:
    """Returns the hparams of layers of some kinds, with the shortest pattern."""
    if set(kinds) in ({"full"}, {"local"}):
        return {"attention_type": kinds[0], "layer_pattern": []}
    lengths = range(1, len(kinds) + 1)
    period = next(n for n in lengths if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return {"attention_type": "full", "layer_pattern": list(kinds[:period])}


def activation(config: Config, name: str) -> str:
    """Returns our name of the activation in an entry of a config.

    Raises:
      ConversionError: there is none.
    """
    value = config[name]
    sentence = f"config.json has {name}={value!r}"
    check_known(str(value), ACTIVATIONS, "activations", sentence, ConversionError)
    return ACTIVATIONS[value]


def num_classes(config: Config) -> int:
    """Returns the number of classes; `transformers` does not write that there are two.

    Raises:
      ConversionError: the model does not choose one of several classes.
    """
    count = len(config.get("id2label") or ()) or config.get("num_labels", 2)
    kind = config.get("problem_type") or _ONE_CLASS
    if kind != _ONE_CLASS or count < 2:
        raise ConversionError(
            f"config.json has problem_type={kind!r} and {count} classes: t2tp supports"
            f" {_ONE_CLASS!r} with two or more"
        )
    return count


def labels(count: int) -> dict[str, Any]:
    """Returns the entries of a config that name classes, with the names of `transformers`."""
    names = [f"LABEL_{number}" for number in range(count)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def their_activation(mlp: str) -> str:
    """Returns the name of our network's activation in configs."""
    return next((theirs for theirs, ours in ACTIVATIONS.items() if ours == mlp), mlp)


def token(value: Any) -> int:
    """Returns a token of a config: the value, or the first of a list; 0 if there is none."""
    if isinstance(value, list):
        value = value[0] if value else None
    return 0 if value is None else value
