"""`tfds:NAME`: any dataset of TFDS as a problem, its features named by options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t2tp.hparam import HParams
from t2tp.nearest import nearest
from t2tp.problems.generation import Sample
from t2tp.problems.images import (
    Image2ClassProblem,
    ImageGenerationProblem,
    ImageProblem,
    shrink_to_cover,
)
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import Text2TextProblem
from t2tp.problems.tfds_source import FromTfds, import_tfds
from t2tp.problems.tfds_splits import default_splits

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

PREFIX = "tfds:"

# The option that says that nothing is read.
_NONE = "-"

# Larger pictures are kept as JPEG.
_LARGEST_PLAIN = 128 * 128


class AnyTfds(FromTfds, Problem):
    """A dataset of TFDS; to be put before the family.

    Options:
        inputs, targets: the features that are read and to be predicted; by default those that the
            dataset is made for. Without inputs the targets are modelled themselves. A feature
            inside another is named by both: "question/stem".
        train, validation, test: the dataset's splits, or parts of them ("train[:95%]"). By default
            those of these names, or, where one is missing, 5 % of train; less what is named for
            the others, as no example is in two splits by default.
        height, width: what pictures are scaled and cut to.
    """

    making_options: tuple[str, ...] = (
        "inputs",
        "targets",
        "train",
        "validation",
        "test",
        "height",
        "width",
    )

    def __init__(self, dataset: str, info: tfds.core.DatasetInfo, options: str):
        """Takes the dataset's name as the user typed it, its description, and options."""
        self.dataset = dataset
        super().__init__(options)
        inputs, targets = chosen_features(info, self.options.inputs, self.options.targets)
        self.options.inputs, self.options.targets = inputs or _NONE, targets

    @property
    def name(self) -> str:
        """ "tfds:" and the dataset's name."""
        return PREFIX + self.dataset

    def folder(self, data_dir: AnyPath) -> Path:
        """Returns where the data lie."""
        return Path(data_dir) / f"tfds_{self.dataset.replace('/', '_')}"

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        options.add("inputs", "", help="feature that is read; - for none")
        options.add("targets", "", help="feature that is predicted")
        for split in self.splits:
            options.add(split, "", help="split of the dataset, or a part of one")
        options.add("height", 0, help="of pictures; 0: as they are")
        options.add("width", 0, help="of pictures; 0: as they are")
        return options

    def dataset_split(self, split: str, info: tfds.core.DatasetInfo) -> str:
        """Returns the option, or what the options leave: see `tfds_splits.default_splits`."""
        given = {name: self.options.get(name) for name in self.splits if self.options.get(name)}
        return given.get(split) or default_splits(self.splits, given, info.splits)[split]


class TfdsText2Text(AnyTfds, Text2TextProblem):
    """Text to text."""

    making_options = (*AnyTfds.making_options, *Text2TextProblem.making_options)

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Takes the two features."""
        return {
            "inputs": example[self.options.inputs],
            "targets": example[self.options.targets],
        }


class TfdsLanguageModel(AnyTfds, LanguageModelProblem):
    """Language modelling."""

    making_options = (*AnyTfds.making_options, *LanguageModelProblem.making_options)

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Takes the text."""
        return {"text": example[self.options.targets]}


class TfdsText2Class(AnyTfds, Text2ClassProblem):
    """Text to class."""

    making_options = (*AnyTfds.making_options, *Text2ClassProblem.making_options)

    def __init__(self, dataset: str, info: tfds.core.DatasetInfo, options: str):
        """Takes the names of the classes besides."""
        super().__init__(dataset, info, options)
        self.class_names = tuple(flat_features(info)[self.options.targets].names)

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Takes the two features."""
        return {
            "inputs": example[self.options.inputs],
            "label": int(example[self.options.targets]),
        }


class _AnyImage(AnyTfds, ImageProblem):
    """Pictures."""

    _feature: str

    def _take_shape(self, info: tfds.core.DatasetInfo, feature: str) -> None:
        height, width, channels = flat_features(info)[feature].shape
        height, width = self.options.height or height, self.options.width or width
        if None in (height, width, channels):
            raise ValueError(
                f"the pictures of {self.name} have no fixed size: say what they are to be scaled "
                "and cut to, as in height=64,width=64"
            )
        self._feature = feature
        self.image_shape = (height, width, channels)
        self.stored_as_jpeg = height * width > _LARGEST_PLAIN

    def _scaled(self, example: Mapping[str, Any]) -> np.ndarray:
        image = example[self._feature]
        if image.shape == self.image_shape:
            return image
        return shrink_to_cover(image, *self.image_shape[:2])


class TfdsImage2Class(_AnyImage, Image2ClassProblem):
    """Picture to class."""

    def __init__(self, dataset: str, info: tfds.core.DatasetInfo, options: str):
        """Takes the pictures' shape and the names of the classes besides."""
        super().__init__(dataset, info, options)
        self.class_names = tuple(flat_features(info)[self.options.targets].names)
        self._take_shape(info, self.options.inputs)

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Takes the two features."""
        return {"image": self._scaled(example), "label": int(example[self.options.targets])}


class TfdsImageGeneration(_AnyImage, ImageGenerationProblem):
    """Pictures themselves."""

    def __init__(self, dataset: str, info: tfds.core.DatasetInfo, options: str):
        """Takes the pictures' shape besides."""
        super().__init__(dataset, info, options)
        self._take_shape(info, self.options.targets)

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Takes the picture."""
        return {"image": self._scaled(example)}


# (kind of the inputs, kind of the targets) -> family
_FAMILIES: dict[tuple[str, str], type[AnyTfds]] = {
    ("Text", "Text"): TfdsText2Text,
    ("", "Text"): TfdsLanguageModel,
    ("Text", "ClassLabel"): TfdsText2Class,
    ("Image", "ClassLabel"): TfdsImage2Class,
    ("", "Image"): TfdsImageGeneration,
}


def find_tfds(name: str, options: str) -> Problem:
    """Returns the problem of a dataset.

    Args:
        name: "tfds:" and the dataset's name in TFDS's catalog.
        options: of `AnyTfds` and of the family, which follows from the features' kinds.

    Raises:
        ValueError: there is no such dataset or feature, or no family for its features.
    """
    dataset = name.removeprefix(PREFIX)
    info = _dataset_info(dataset)
    inputs, targets = chosen_features(info, _given(options, "inputs"), _given(options, "targets"))
    features = flat_features(info)
    kinds = tuple(type(features[each]).__name__ if each else "" for each in (inputs, targets))
    if kinds not in _FAMILIES:
        raise ValueError(
            f"no problem goes from {inputs or 'nothing'} to {targets} of {name}: "
            f"{_features(info)}; name others by the options inputs and targets"
        )
    return _FAMILIES[kinds](dataset, info, options)


def _dataset_info(dataset: str) -> tfds.core.DatasetInfo:
    """Returns the description of a dataset of TFDS; see `find_tfds`."""
    tfds = import_tfds()
    try:
        return tfds.builder(dataset).info
    except tfds.core.DatasetNotFoundError as error:
        known = nearest(dataset.partition("/")[0], tfds.list_builders(), "datasets of TFDS")
        raise ValueError(f"TFDS has no dataset {dataset!r}: {known}") from error
    except (ValueError, AssertionError) as error:  # no such configuration or version, no name
        plain, _, config = dataset.partition("/")
        if plain in tfds.list_builders():
            configs = tfds.builder_cls(plain).builder_configs
            if config and config.partition(":")[0] not in configs:
                known = nearest(config, configs, f"configurations of {plain}")
                raise ValueError(f"TFDS has no dataset {dataset!r}: {known}") from error
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"TFDS cannot open the dataset {dataset!r}: {reason}") from error


def _given(options: str, name: str) -> str:
    """Returns an option's value before the family, and with it all options, is known."""
    found = re.search(rf"(?:^|,)\s*{name}\s*=\s*([^,]*)", options)
    return found.group(1).strip() if found else ""


def chosen_features(info: tfds.core.DatasetInfo, inputs: str, targets: str) -> tuple[str, str]:
    """Returns the features that are inputs ("" for none) and targets.

    Args:
        info: of the dataset.
        inputs: the option: "" for what the dataset is made for, "-" for none.
        targets: the option.

    Raises:
        ValueError: the dataset does not have them, or is not made for any.
    """
    if not targets:
        made_for: tuple[Any, ...] = (info.supervised_keys or ())[:2]
        # Some have none, and some are made for several features at once.
        if len(made_for) < 2 or not all(isinstance(each, str) for each in made_for):
            raise ValueError(
                f"which features of {info.full_name}? say it with the options inputs and targets: "
                f"{_features(info)}"
            )
        made_for_inputs, targets = made_for
        # Datasets of mere text name it twice.
        inputs = inputs or (made_for_inputs if made_for_inputs != targets else "")
    inputs = "" if inputs == _NONE else inputs
    for feature in filter(None, (inputs, targets)):
        if feature not in flat_features(info):
            raise ValueError(f"{info.full_name} has no feature {feature!r}: {_features(info)}")
    return inputs, targets


def flat_features(info: tfds.core.DatasetInfo) -> dict[str, Any]:
    """Returns the features by name; those inside another by their path, as in "question/stem"."""
    found: dict[str, Any] = {}

    def add(prefix: str, features: Mapping[str, Any]) -> None:
        for name, feature in features.items():
            if hasattr(feature, "items"):
                add(f"{prefix}{name}/", feature)
            else:
                found.setdefault(prefix + name, feature)

    if hasattr(info.features, "items"):  # else it is a tuple or a single one, without names
        add("", info.features)
    return found


def _features(info: tfds.core.DatasetInfo) -> str:
    found = [f"{name} ({type(each).__name__})" for name, each in flat_features(info).items()]
    return f"its features are {', '.join(found)}" if found else "its features have no names"
