"""The types of models that can be converted, by `model_type` and architecture.

The table of a type is `model_types/NAME.toml`. Its keys are the attributes of `ModelType`, except:

    parent      a table whose keys this table inherits, unless it has them itself. If both tables
                have a subtable, such as [hparams], the subtables are merged entry by entry
    [hparams]   hparams of the architecture: a value that all models of the type have, or the entry
                of config.json with the value:
                    norm_type = "rms"
                    d_model = { from = "hidden_size" }
                    mlp = { from = "hidden_act", as = "flag" }  # values.FLAG
    parts       constants of type `ConfigPart`: entries that must be read together
    [training]  further hparams of a converted run, in the form of [hparams]
    tensors     a name in TENSORS: the function that lists the tensors
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

from t2tp.hparam import HParams
from t2tp.huggingface import layer_kinds, rotary, values
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import ModelType
from t2tp.huggingface.model_types import bert, gpt2, llama, t5, vit
from t2tp.huggingface.part import SAME_VALUE, ConfigPart, Conversion, of_entry, of_values
from t2tp.huggingface.tensor_map import TensorRow
from t2tp.toml import read_packaged

_T = TypeVar("_T")


def _named(kind: type[_T], *modules: ModuleType) -> dict[str, _T]:
    """Returns the constants of a type in modules, by their names in lower case."""
    return {
        name.lower(): value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, kind) and not name.startswith("_")
    }


CONVERSIONS = _named(Conversion, values)
PARTS = _named(ConfigPart, values, rotary, layer_kinds, t5, vit)

TENSORS: dict[str, Callable[[HParams], Sequence[TensorRow]]] = {
    "llama": llama.tensors,
    "mixtral": llama.mixtral,
    "qwen3_moe": llama.qwen3_moe,
    "gpt_oss": llama.gpt_oss,
    "phi3": llama.phi3,
    "gpt2": gpt2.tensors,
    "t5": t5.tensors,
    "bert": bert.tensors_of_masked,
    "bert_classifier": bert.tensors_of_classifier,
    "vit": vit.tensors,
}

# The tables, in the order in which they are tried for a run without config.json. A type may have
# several tables, one per architecture.
_TABLES = (
    *("gpt2", "llama", "mistral", "qwen2", "gemma", "mixtral", "t5", "qwen3", "qwen3_moe", "olmo2"),
    *("olmo3", "granite", "smollm3", "phi3", "gemma2", "gemma3_text", "gpt_oss"),
    *("bert", "bert_classifier", "vit"),
)


@functools.cache
def _table(name: str) -> dict[str, Any]:
    """Returns a table, merged with its parent."""
    own = read_packaged("t2tp.huggingface.model_types", f"{name}.toml")
    table = dict(_table(own.pop("parent"))) if "parent" in own else {}
    for key, value in own.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    return table


def _parts(hparams: Mapping[str, Any]) -> list[ConfigPart]:
    """Returns the `ConfigPart`s of a table's hparams."""
    sources = {name: value for name, value in hparams.items() if isinstance(value, dict)}
    parts = [of_values({name: hparams[name] for name in hparams if name not in sources})]
    for name, source in sources.items():
        conversion = CONVERSIONS[source["as"]] if "as" in source else SAME_VALUE
        parts.append(of_entry(name, source["from"], conversion))
    return parts


def _model_type(name: str) -> ModelType:
    fields = dict(_table(name))
    hparams, entries = fields.pop("hparams"), TENSORS[fields.pop("tensors")]
    parts = [*_parts(hparams), *(PARTS[each] for each in fields.pop("parts"))]
    training = _parts(fields.pop("training", {}))
    return ModelType(parts=parts, training=training, entries=entries, **fields)


MODEL_TYPES: tuple[ModelType, ...] = tuple(map(_model_type, _TABLES))


def find_types(name: str) -> list[ModelType]:
    """Returns the architectures of a type, or raises ConversionError."""
    found = [each for each in MODEL_TYPES if each.name == name]
    if not found:
        # Suggests no similar name: a user might load the wrong model with it.
        known = ", ".join(dict.fromkeys(each.name for each in MODEL_TYPES))
        raise ConversionError(f"t2tp has no models of type {name!r}, only {known}")
    return found


def find_type(name: str, architectures: Sequence[str] | None = None) -> ModelType:
    """Returns the architecture of a type, or raises ConversionError.

    The arguments are the config's entries `model_type` and `architectures`. If `architectures` is
    missing, the type's first architecture is returned.
    """
    types = find_types(name)
    if not architectures:
        return types[0]
    for each in types:
        if list(architectures) == [each.architecture]:
            return each
    raise ConversionError(
        f"config.json names {', '.join(map(str, architectures))}: t2tp converts models of type"
        f" {name} as {' and '.join(each.architecture for each in types)}"
    )
