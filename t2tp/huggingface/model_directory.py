"""A Hugging Face directory: `config.json`, and tensors in one file or several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import typed_files
from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.known_types import find_type
from t2tp.huggingface.model_type import HAS_LOGITS, IMAGE_MEAN, IMAGE_STD, MASK_TOKEN, ModelType
from t2tp.huggingface.safetensors_file import TensorInfo, read_header
from t2tp.huggingface.tensor_map import MOST_ELEMENTS, Variable, variables
from t2tp.problems.vocab.special_tokens import TOKENIZER_FILE, read_special_tokens, token_ids
from t2tp.suggestions import nearest
from t2tp.typed_files import Schema

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
IMAGES_FILE = "preprocessor_config.json"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelDirectory:
    """A directory's `config.json`, and the positions of its tensors. Values are read later."""

    path: Path
    config: dict[str, Any]
    model_type: ModelType
    tensors: dict[str, TensorInfo]

    @classmethod
    def from_path(cls, path: Path) -> ModelDirectory:
        """Reads the config and the headers of the files.

        Raises:
          ConversionError: a file is missing or damaged, or t2tp does not support the model's type.
        """
        if not path.is_dir():
            raise ConversionError(
                f"{path} is no directory: name one with {CONFIG_FILE} and weights"
            )
        config, model_type = read_config(path)
        return cls(path, config, model_type, _tensors(path, model_type.renamed))

    def hparams(self) -> HParams:
        """Returns the hparams of the model, or raises ConversionError."""
        ids = token_ids(self.path / TOKENIZER_FILE)
        mask = ids.get(read_special_tokens(self.path).mask or "")
        found = {HAS_LOGITS: self._has_logits(), MASK_TOKEN: mask}
        return self.model_type.hparams({**self.config, **found, **_image_channels(self.path)})

    def variables(self, hparams: HParams) -> list[Variable]:
        """Returns the model's variables; raises ConversionError if the files have other tensors."""
        sizes = self.model_type.sizes(hparams)
        # A damaged config may have a billion layers.
        for name in ("layer", "encoder_layer", "decoder_layer", "expert"):
            if sizes[name] > len(self.tensors):
                raise ConversionError(
                    f"{self.path / CONFIG_FILE} is of a model with {sizes[name]:,} {name}s, and the"
                    f" files have {len(self.tensors):,} tensors: the two are not of one model"
                )
        found = variables(self.model_type.tensors(hparams), sizes)
        self._check_fits(found)
        return found

    def _check_fits(self, of_model: Sequence[Variable]) -> None:
        """Checks that the files have the variables' tensors, and no other tensors."""
        used = set()
        for variable in of_model:
            for piece in variable.pieces:
                if piece.is_copy and not self._has(piece.theirs):
                    continue
                info = self.tensor(piece.theirs)
                used.add(info)
                if info.shape != piece.shape:
                    raise ConversionError(
                        f"{info.path} has {piece.theirs} of shape {list(info.shape)}, and by"
                        f" {CONFIG_FILE} it is {list(piece.shape)}: the two are not of one model"
                    )
        for name, info in self.tensors.items():
            if info in used or self._is_ignored(name):
                continue
            if name == self.model_type.logits:
                raise ConversionError(
                    f"{info.path} has a tensor {name} that differs from the embedding, and by"
                    f' {CONFIG_FILE} the two are one: set "tie_word_embeddings": false there if the'
                    " model was trained so"
                )
            raise ConversionError(
                f"{info.path} has a tensor {name}, which a model of type"
                f" {self.model_type.name} with this {CONFIG_FILE} does not have"
            )

    def check_tokenizer(self, vocab_size: int) -> None:
        """Raises ConversionError if the directory's tokenizer has more tokens than the model."""
        file = self.path / TOKENIZER_FILE
        largest = max(token_ids(file).values(), default=0)
        if largest >= vocab_size:
            raise ConversionError(
                f"{file} has tokens up to {largest}, and the model has {vocab_size}: the two are"
                " not of one model"
            )

    def tensor(self, name: str) -> TensorInfo:
        """Finds a tensor in the files, with or without the architecture's prefix in its name.

        Raises:
          ConversionError: there is no such tensor.
        """
        for each in self._names(name):
            if each in self.tensors:
                return self.tensors[each]
        raise ConversionError(
            f"{self.path} has no tensor {name}: {nearest(name, self.tensors, 'tensors')}"
        )

    def _names(self, name: str) -> list[str]:
        """Returns a tensor's possible names in the files, the usual name first."""
        names = [name, *filter(None, [self.model_type.stands_in.get(name)])]
        return names + [each.removeprefix(self.model_type.prefix) for each in names]

    def _has(self, name: str) -> bool:
        return any(each in self.tensors for each in self._names(name))

    def _has_logits(self) -> bool:
        """Whether logits have their own tensor, which is not merely a copy of the embedding."""
        if self.model_type.logits not in self.tensors:
            return False
        default = self.model_type.defaults.get("tie_word_embeddings", True)
        return not (self.config.get("tie_word_embeddings", default) and self._is_copy)

    @cached_property
    def _is_copy(self) -> bool:
        """Whether the tensor of logits has the embedding's values."""
        tensors = self.model_type.tensors(self.model_type.hparams(self.config))
        (embedding,) = (each.theirs for each in tensors if each.ours == "embedding")
        table = self.tensor(embedding).opened()
        logits = self.tensor(self.model_type.logits).opened()
        if table.shape != logits.shape or table.ndim != 2 or not table.size:
            return False
        rows = max(1, MOST_ELEMENTS // table.shape[1])
        return all(
            np.array_equal(table[begin : begin + rows], logits[begin : begin + rows])
            for begin in range(0, len(table), rows)
        )

    def _is_ignored(self, name: str) -> bool:
        if name == self.model_type.logits and self._is_copy:
            return True
        plain = name.removeprefix(self.model_type.prefix)
        return any(re.fullmatch(pattern, plain) for pattern in self.model_type.ignored)


def read_config(directory: Path) -> tuple[dict[str, Any], ModelType]:
    """Reads the config of a model, and finds the model's type.

    Raises:
      ConversionError: the file is missing, or t2tp does not support the model's type.
      ValueError: the file is damaged.
    """
    schema = {"model_type": str, "architectures": list[str]}
    config = _read_json(directory / CONFIG_FILE, schema)
    return config, find_type(str(config.get("model_type")), config.get("architectures"))


def read_weight_map(directory: Path) -> dict[str, str]:
    """Returns the file of each tensor, for a model in several files.

    Raises:
      ConversionError: the file is missing.
      ValueError: the file is damaged.
    """
    index = _read_json(directory / INDEX_FILE, {"weight_map": dict[str, str]})
    return index.get("weight_map") or {}


def _read_json(path: Path, schema: Schema) -> Any:
    """Reads a JSON file; raises ConversionError if the file is missing.

    Raises:
      ConversionError: the file is missing.
      ValueError: the file is damaged.
    """
    try:
        return typed_files.read_json(typed_files.file_inside(path.parent, path.name), schema)
    except FileNotFoundError:
        raise ConversionError(
            f"{path.parent} has no {path.name}: is it a model's directory?"
        ) from None


def _image_channels(path: Path) -> dict[str, list[float]]:
    """Returns the channels' mean and standard deviation, for pixels from 0 to 1; {} if unknown."""
    if not (path / IMAGES_FILE).exists():
        return {}
    names = (IMAGE_MEAN, IMAGE_STD)
    values = dict.fromkeys(names, list[float] | float)
    config = _read_json(path / IMAGES_FILE, {"rescale_factor": float, **values})
    if not config.get("do_normalize", True):
        return {}
    # The image processor multiplies bytes by this factor; t2tp divides them by 255.
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    scale = round((factor or 0) * 255, 9)
    channels = {name: config.get(name) or [] for name in names}
    if not scale or not all(isinstance(values, list) for values in channels.values()):
        raise ConversionError(f"{path / IMAGES_FILE} has no list of a number for each channel")
    return {name: [value / scale for value in values] for name, values in channels.items()}


def _tensors(path: Path, renamed: Mapping[str, str]) -> dict[str, TensorInfo]:
    """Returns the tensors of all files, by their current names."""
    found = {}
    for name, info in _read_headers(path).items():
        for before, after in renamed.items():
            name = name.replace(before, after)
        found[name] = info
    return found


def _read_headers(path: Path) -> dict[str, TensorInfo]:
    """Returns the tensors of all files, by their names in the files."""
    if (path / INDEX_FILE).exists():
        files_of = read_weight_map(path)
        tensors: dict[str, TensorInfo] = {}
        for name in sorted(set(files_of.values())):
            file = typed_files.file_inside(path, name)
            if not file.exists():
                raise ConversionError(f"{file} is missing, which {INDEX_FILE} names")
            tensors |= read_header(file)
        missing = [name for name in files_of if name not in tensors]
        if missing:
            raise ConversionError(
                f"{path / files_of[missing[0]]} has no {missing[0]}, which {INDEX_FILE} says it has"
            )
        return tensors
    if (path / WEIGHTS_FILE).exists():
        return read_header(typed_files.file_inside(path, WEIGHTS_FILE))
    pickles = sorted(file.name for file in (*path.glob("*.bin"), *path.glob("*.pt*")))
    if pickles:
        raise ConversionError(
            f"{path} has {pickles[0]}, a pickle, which may run any code when it is read: convert"
            f" the model to {WEIGHTS_FILE} where you trust it, or download that"
        )
    raise ConversionError(f"{path} has no {WEIGHTS_FILE} and no {INDEX_FILE}")
