"""A directory of Hugging Face: `config.json`, and tensors in one file or several."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.known_types import find_type
from t2tp.huggingface.model_type import HAS_LOGITS, ModelType
from t2tp.huggingface.safetensors_file import TensorInfo, read_header
from t2tp.huggingface.tensor_map import Variable
from t2tp.suggestions import nearest

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelDirectory:
    """A directory, whose tensors have not been read yet.

    Attributes:
      path: of the directory.
      config: the contents of `config.json`.
      model_type: the type of the model.
      tensors: the places of its tensors, by name.
    """

    path: Path
    config: dict[str, Any]
    model_type: ModelType
    tensors: dict[str, TensorInfo]

    @classmethod
    def from_path(cls, path: Path) -> ModelDirectory:
        """Reads the config and the headers of the files.

        Raises:
          ConversionError: a file is missing or damaged, or the model is of a type that t2tp lacks.
          OSError: a file cannot be read.
        """
        if not path.is_dir():
            raise ConversionError(
                f"{path} is no directory: name one with {CONFIG_FILE} and weights"
            )
        config = read_json(path / CONFIG_FILE)
        model_type = find_type(str(config.get("model_type")))
        return cls(path, config, model_type, _tensors(path))

    def hparams(self) -> HParams:
        """Returns the hparams of the model.

        Raises:
          ConversionError: an entry of the config is missing, or t2tp has nothing for its value.
        """
        has_logits = "lm_head.weight" in self.tensors
        return self.model_type.hparams({**self.config, HAS_LOGITS: has_logits})

    def check_fits(self, variables: Sequence[Variable]) -> None:
        """Checks that the files have the variables' tensors, and no others.

        Raises:
          ConversionError: a tensor is missing, has another shape, or is not one of the model.
        """
        used = set()
        for variable in variables:
            for piece in variable.pieces:
                info = self.tensor(piece.theirs)
                used.add(info)
                if info.shape != piece.shape:
                    raise ConversionError(
                        f"{info.path} has {piece.theirs} of shape {list(info.shape)}, and by"
                        f" {CONFIG_FILE} it is {list(piece.shape)}: the two are not of one model"
                    )
        for name, info in self.tensors.items():
            if info not in used and not self._is_ignored(name):
                raise ConversionError(
                    f"{info.path} has a tensor {name}, which a model of type"
                    f" {self.model_type.name} with this {CONFIG_FILE} does not have"
                )

    def check_tokenizer(self, vocab_size: int) -> None:
        """Checks that all tokens of the directory's tokenizer, if any, are of the vocabulary.

        Raises:
          ConversionError: it has more tokens than the model.
        """
        file = self.path / TOKENIZER_FILE
        if not file.is_file():
            return
        content = read_json(file)
        pieces = content.get("model", {}).get("vocab", {})
        ids = pieces.values() if isinstance(pieces, dict) else range(len(pieces))
        largest = max(
            [*ids, *(each["id"] for each in content.get("added_tokens") or ())], default=0
        )
        if largest >= vocab_size:
            raise ConversionError(
                f"{file} has tokens up to {largest}, and the model has {vocab_size}: the two are"
                " not of one model"
            )

    def tensor(self, name: str) -> TensorInfo:
        """Returns the place of a tensor, with or without the prefix of its architecture.

        Raises:
          ConversionError: there is no such tensor.
        """
        plain = name.removeprefix(self.model_type.prefix)
        for each in (name, plain):
            if each in self.tensors:
                return self.tensors[each]
        raise ConversionError(
            f"{self.path} has no tensor {name}: {nearest(name, self.tensors, 'tensors')}"
        )

    def _is_ignored(self, name: str) -> bool:
        plain = name.removeprefix(self.model_type.prefix)
        pattern = self.model_type.ignored
        return bool(pattern) and re.fullmatch(pattern, plain) is not None


def read_json(path: Path) -> dict[str, Any]:
    """Reads an object.

    Raises:
      ConversionError: it is missing, or not JSON.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConversionError(
            f"{path.parent} has no {path.name}: is it a model's directory?"
        ) from None
    except ValueError as error:
        raise ConversionError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} is no object of names and values; download it again")
    return content


def _tensors(path: Path) -> dict[str, TensorInfo]:
    """Returns the tensors of all files."""
    if (path / INDEX_FILE).exists():
        files_of = read_json(path / INDEX_FILE).get("weight_map", {})
        tensors: dict[str, TensorInfo] = {}
        for name in sorted(set(files_of.values())):
            if not (path / name).is_file():
                raise ConversionError(f"{path / name} is missing, which {INDEX_FILE} names")
            tensors |= read_header(path / name)
        missing = [name for name in files_of if name not in tensors]
        if missing:
            raise ConversionError(
                f"{path / files_of[missing[0]]} has no {missing[0]}, which {INDEX_FILE} says it has"
            )
        return tensors
    if (path / WEIGHTS_FILE).is_file():
        return read_header(path / WEIGHTS_FILE)
    pickles = sorted(file.name for file in (*path.glob("*.bin"), *path.glob("*.pt*")))
    if pickles:
        raise ConversionError(
            f"{path} has {pickles[0]}, a pickle, which may run any code when it is read: convert"
            f" the model to {WEIGHTS_FILE} where you trust it, or download that"
        )
    raise ConversionError(f"{path} has no {WEIGHTS_FILE} and no {INDEX_FILE}")
