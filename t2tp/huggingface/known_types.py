"""The types of models that can be converted, by `model_type`."""

from __future__ import annotations

from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import ModelType
from t2tp.huggingface.model_types.gemma import GEMMA
from t2tp.huggingface.model_types.gpt2 import GPT2
from t2tp.huggingface.model_types.llama import LLAMA
from t2tp.huggingface.model_types.mistral import MISTRAL
from t2tp.huggingface.model_types.mixtral import MIXTRAL
from t2tp.huggingface.model_types.qwen2 import QWEN2
from t2tp.huggingface.model_types.t5 import T5
from t2tp.suggestions import nearest

MODEL_TYPES: dict[str, ModelType] = {
    each.name: each for each in (GPT2, LLAMA, MISTRAL, QWEN2, GEMMA, MIXTRAL, T5)
}


def find_type(name: str) -> ModelType:
    """Returns a type by its name.

    Raises:
      ConversionError: there is no such type.
    """
    if name not in MODEL_TYPES:
        known = nearest(name, MODEL_TYPES, "types of models")
        raise ConversionError(f"models of type {name!r} cannot be converted: {known}")
    return MODEL_TYPES[name]
