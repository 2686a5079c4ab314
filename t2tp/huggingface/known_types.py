"""The types of models that can be converted, by `model_type` and architecture."""

from collections.abc import Sequence

from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import ModelType
from t2tp.huggingface.model_types.bert import BERT, BERT_CLASSIFIER
from t2tp.huggingface.model_types.gemma import GEMMA
from t2tp.huggingface.model_types.gemma2 import GEMMA2
from t2tp.huggingface.model_types.gemma3 import GEMMA3
from t2tp.huggingface.model_types.gpt2 import GPT2
from t2tp.huggingface.model_types.gpt_oss import GPT_OSS
from t2tp.huggingface.model_types.granite import GRANITE
from t2tp.huggingface.model_types.llama import LLAMA
from t2tp.huggingface.model_types.mistral import MISTRAL
from t2tp.huggingface.model_types.mixtral import MIXTRAL
from t2tp.huggingface.model_types.olmo2 import OLMO2
from t2tp.huggingface.model_types.olmo3 import OLMO3
from t2tp.huggingface.model_types.phi3 import PHI3
from t2tp.huggingface.model_types.qwen2 import QWEN2
from t2tp.huggingface.model_types.qwen3 import QWEN3
from t2tp.huggingface.model_types.qwen3_moe import QWEN3_MOE
from t2tp.huggingface.model_types.smollm3 import SMOLLM3
from t2tp.huggingface.model_types.t5 import T5
from t2tp.huggingface.model_types.vit import VIT

# A run without a config is compared with these in order. A type may have several architectures.
MODEL_TYPES: tuple[ModelType, ...] = (
    *(GPT2, LLAMA, MISTRAL, QWEN2, GEMMA, MIXTRAL, T5),
    *(QWEN3, QWEN3_MOE, OLMO2, OLMO3, GRANITE, SMOLLM3, PHI3, GEMMA2, GEMMA3, GPT_OSS),
    *(BERT, BERT_CLASSIFIER, VIT),
)


def find_types(name: str) -> list[ModelType]:
    """Returns the architectures of a type.

    Raises:
      ConversionError: there is no such type.
    """
    found = [each for each in MODEL_TYPES if each.name == name]
    if not found:
        # No similar name: weights of one type, read as another, are a wrong model.
        known = ", ".join(dict.fromkeys(each.name for each in MODEL_TYPES))
        raise ConversionError(f"t2tp has no models of type {name!r}, only {known}")
    return found


def find_type(name: str, architectures: Sequence[str] | None = None) -> ModelType:
    """Returns an architecture of a type.

    Args:
      name: the type, `model_type` in a config.
      architectures: those that a config names; by default the first that t2tp has.

    Raises:
      ConversionError: there is no such type or architecture.
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
