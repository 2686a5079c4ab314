"""Values in configs that hparams express differently: names of activations, tokens, heads."""

from collections.abc import Mapping
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.part import Config, ConfigPart, Conversion
from t2tp.suggestions import check_known

_ONE_CLASS = "single_label_classification"

# Activation in configs -> our name. If several activations have one of our names, exports write the
# first of them.
ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu_erf",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Like ACTIVATIONS, for networks with a gate.
_GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu_pytorch_tanh": "geglu",
    "gelu_new": "geglu",
    "gelu_fast": "geglu",
}


def read_name(config: Config, entry: str, names: Mapping[str, str], what: str) -> str:
    """Returns our name of an entry's value, or raises ConversionError.

    `names` maps the names in configs to ours; `what` is a plural noun for them.
    """
    value = config[entry]
    sentence = f"config.json has {entry}={value!r}"
    check_known(str(value), names, what, sentence, ConversionError)
    return names[value]


def their_name(ours: str, names: Mapping[str, str]) -> str:
    """Returns the name in configs of one of our names; unknown names unchanged."""
    return next((name for name, each in names.items() if each == ours), ours)


def _named(names: Mapping[str, str], what: str) -> Conversion:
    return Conversion(
        lambda config, entry: read_name(config, entry, names, what),
        lambda hparams, name: their_name(hparams.get(name), names),
    )


ACTIVATION = _named(ACTIVATIONS, "activations")
GATED_ACTIVATION = _named(_GATED, "activations of gated networks")


def _read_gemma(config: Config, entry: str) -> str:
    # Gemma's first configs have hidden_act "gelu", but all implementations use the tanh form.
    tanh = {"gelu": "gelu_pytorch_tanh"}
    act = tanh.get(config[entry], config[entry])
    newer = config.get("hidden_activation") or act
    if newer != act:
        raise ConversionError(
            f"config.json has {entry}={act!r} and hidden_activation={newer!r}: versions of"
            " transformers disagree which of them counts"
        )
    return GATED_ACTIVATION.read({entry: act}, entry)


GEMMA_ACTIVATION = Conversion(_read_gemma, GATED_ACTIVATION.write, ("hidden_activation",))


def _first_token(value: Any) -> int:
    """Returns a token, or a list's first token; 0 if there is none."""
    if isinstance(value, list):
        value = value[0] if value else None
    return value or 0


TOKEN = Conversion(lambda config, entry: _first_token(config[entry]))
FIRST_TOKEN = ConfigPart(
    ("bos_token_id",),
    lambda config: {"bos_token_id": _first_token(config["bos_token_id"])},
    # Without this entry, `transformers` uses a default pad token. If it is outside a small
    # vocabulary, the model cannot be created.
    lambda hparams: {"bos_token_id": hparams.bos_token_id, "pad_token_id": None},
)

FLAG = Conversion(lambda config, entry: bool(config.get(entry)))
ZERO_IF_NULL = Conversion(
    lambda config, entry: config[entry] or 0.0, lambda hparams, name: hparams.get(name) or None
)


def _written_scalar(hparams: HParams, name: str) -> float:
    scalar = round(hparams.get(name) ** -2, 9)
    return int(scalar) if scalar == int(scalar) else scalar


INVERSE_ROOT = Conversion(lambda config, entry: config[entry] ** -0.5, _written_scalar)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


KEY_VALUE_HEADS = Conversion(
    lambda config, entry: _or(config.get(entry), config["num_attention_heads"]),
    lambda hparams, name: hparams.get(name) or hparams.num_heads,
)
HEAD_SIZE = Conversion(
    lambda config, entry: _or(
        config.get(entry), config["hidden_size"] // config["num_attention_heads"]
    )
)

GPT2_HIDDEN_SIZE = Conversion(lambda config, entry: _or(config.get(entry), 4 * config["n_embd"]))


def _equal_heads(size: str, heads: str) -> ConfigPart:
    """Returns the part for heads that divide the hidden size equally; the arguments are entries."""
    return ConfigPart((), lambda config: {"d_kv": config[size] // config[heads]})


GPT2_HEADS = _equal_heads("n_embd", "n_head")
BERT_HEADS = _equal_heads("hidden_size", "num_attention_heads")


# The coefficient of the experts' load-balancing loss, which a separate entry enables.
ROUTER_LOSS = Conversion(
    lambda config, entry: config[entry] if config.get("output_router_logits") else 0.0,
    also=("output_router_logits",),
)
# Configs of transformers 5 have `num_local_experts`, and older ones `num_experts`.
NUM_EXPERTS = Conversion(
    lambda config, entry: config.get(entry, config["num_experts"]), also=("num_experts",)
)
HALF_OF_EXPERTS = Conversion(
    lambda config, entry: config[entry] / 2, lambda hparams, name: hparams.num_experts
)


def _classes(bias: str) -> ConfigPart:
    """Returns the part for a classifier's number of classes; `bias` is our name of its bias."""
    return ConfigPart(
        ("num_labels", "id2label", "problem_type"),
        _read_classes,
        lambda hparams: _labels(hparams.num_classes),
        lambda shapes: {"num_classes": shapes[bias][0]},
    )


def _read_classes(config: Config) -> dict[str, int]:
    """Returns the number of classes, by default two: `transformers` then writes no labels."""
    count = len(config.get("id2label") or ()) or config.get("num_labels", 2)
    kind = config.get("problem_type") or _ONE_CLASS
    if kind != _ONE_CLASS or count < 2:
        raise ConversionError(
            f"config.json has problem_type={kind!r} and {count} classes: t2tp supports"
            f" {_ONE_CLASS!r} with two or more"
        )
    return {"num_classes": count}


def _labels(count: int) -> dict[str, Any]:
    """Returns the entries that name classes, as `transformers` names them."""
    names = [f"LABEL_{number}" for number in range(count)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


BERT_CLASSES = _classes("classifier/bias")
VIT_CLASSES = _classes("logits/output_bias")
