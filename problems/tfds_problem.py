"""`tfds:NAME`: any dataset of TFDS as a problem; options name its features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from t2tp.hparam import HParams
from t2tp.object_store.mirror import pulled
from t2tp.problems import images
from t2tp.problems.data.sample import Sample
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.sources.tfds_source import TfdsSource, import_tfds
from t2tp.problems.sources.tfds_splits import default_splits
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import Text2TextProblem
from t2tp.suggestions import nearest

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

PREFIX = "tfds:"

# Value of the option `inputs` for no feature.
_NONE = "-"

# Max pixels of an image that is not stored as JPEG.
_LARGEST_PLAIN = 128 * 128


class TfdsProblem(TfdsSource, Problem):
    """A dataset of TFDS: a mixin that must come before the family's class among the base classes.

    Options:
        inputs, targets: the feature to read and the feature to predict. Default: the dataset's
            supervised keys. With `inputs=-`, or if only `targets` is given, there are no inputs,
            and only the targets are modelled. A nested feature is named by its path:
            "question/stem".
        train, validation, test: splits of the dataset, or slices of them ("train[:95%]"). Default:
            the split of the same name, or 5 % of train if there is none. Default splits exclude
            the examples that other options name, so that no example is in two splits.
        height, width: size to which images are scaled and cropped; 0: the dataset's size.

    `feature_options` maps the names in a sample to the options that name the features.
    """

    feature_options: ClassVar[Mapping[str, str]]

    def __init__(self, dataset: str, info: tfds.core.DatasetInfo, options: str):
        """Parses the options; `dataset` is the name as the user typed it."""
        self.dataset = dataset
        super().__init__(options)
        inputs, targets = chosen_features(info, self.options.inputs, self.options.targets)
        self.options.inputs, self.options.targets = inputs or _NONE, targets
        options_of = self.feature_options
        self.sample_features = {name: self.options.get(each) for name, each in options_of.items()}
        if "label" in self.sample_features:
            self.class_names = tuple(flat_features(info)[targets].names)

    @property
    def name(self) -> str:
        """The name: "tfds:" and the name of the dataset."""
        return PREFIX + self.dataset

    def directory(self, data_dir: AnyPath) -> Path:
        """Returns the directory of the data."""
        return pulled(Path(data_dir) / f"tfds_{self.dataset.replace('/', '_')}")

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        options.add("inputs", "", help="feature that is read; - for none")
        options.add("targets", "", help="feature that is predicted")
        for split in self.splits:
            options.add(split, "", help="split of the dataset, or a part of one")
        for name in ("height", "width"):
            options.add(name, 0, help="of images; 0: as they are", min=0, max=1_000_000)
        return options

    def dataset_split(self, split: str, info: tfds.core.DatasetInfo) -> str:
        """Returns the dataset's split for a problem's split: the option's value, or a default."""
        given = {name: self.options.get(name) for name in self.splits if self.options.get(name)}
        return given.get(split) or default_splits(self.splits, given, info.splits)[split]


class TfdsText2Text(TfdsProblem, Text2TextProblem):
    """Text to text."""

    feature_options = {"inputs": "inputs", "targets": "targets"}


class TfdsLanguageModel(TfdsProblem, LanguageModelProblem):
    """Language modelling."""

    feature_options = {"text": "targets"}


class TfdsText2Class(TfdsProblem, Text2ClassProblem):
    """Text to class."""

    feature_options = {"inputs": "inputs", "label": "targets"}


class _AnyImage(TfdsProblem, images.ImageProblem):
    """Base class of image problems."""

    def __init__(self, dataset: str, info: tfds.core.DatasetInfo, options: str):
        super().__init__(dataset, info, options)
        height, width, channels = flat_features(info)[self.sample_features["image"]].shape
        height, width = self.options.height or height, self.options.width or width
        if None in (height, width, channels):
            raise ValueError(
                f"the images of {self.name} have no fixed size: name the size to scale them "
                "and cut to, as in height=64,width=64"
            )
        self.image_shape = (height, width, channels)
        self.stored_as_jpeg = height * width > _LARGEST_PLAIN

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Returns the features, with the image scaled."""
        sample = super().sample(example)
        if sample["image"].shape == self.image_shape:
            return sample
        return {**sample, "image": images.shrink_to_cover(sample["image"], *self.image_shape[:2])}


class TfdsImage2Class(_AnyImage, images.Image2ClassProblem):
    """Image to class."""

    feature_options = {"image": "inputs", "label": "targets"}


class TfdsImageGeneration(_AnyImage, images.ImageGenerationProblem):
    """Image generation."""

    feature_options = {"image": "targets"}


# (type of the inputs, type of the targets) -> family
_FAMILIES: dict[tuple[str, str], type[TfdsProblem]] = {
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
      options: options of `TfdsProblem` and of the family, which follows from the features' types.

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
    """Returns the description of a dataset; raises ValueError if TFDS cannot open it."""
    tfds = import_tfds()
    try:
        return tfds.builder(dataset).info
    except tfds.core.DatasetNotFoundError as error:
        known = nearest(dataset.partition("/")[0], tfds.list_builders(), "datasets of TFDS")
        raise ValueError(f"TFDS has no dataset {dataset!r}: {known}") from error
    except (ValueError, AssertionError) as error:  # no such configuration or version, invalid name
        plain, _, config = dataset.partition("/")
        if plain in tfds.list_builders():
            configs = tfds.builder_cls(plain).builder_configs
            if config and config.partition(":")[0] not in configs:
                known = nearest(config, configs, f"configurations of {plain}")
                raise ValueError(f"TFDS has no dataset {dataset!r}: {known}") from error
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"TFDS cannot open the dataset {dataset!r}: {reason}") from error


def _given(options: str, name: str) -> str:
    """Returns an option's value, before the problem's family and its other options are known."""
    match = re.search(rf"(?:^|,)\s*{name}\s*=\s*([^,]*)", options)
    return match.group(1).strip() if match else ""


def chosen_features(info: tfds.core.DatasetInfo, inputs: str, targets: str) -> tuple[str, str]:
    """Returns the names of the inputs feature ("" for none) and of the targets feature.

    If `targets` is empty, the dataset's supervised keys replace empty values. If `targets` is not
    empty, empty `inputs` mean that there are no inputs. `inputs` of "-" always mean no inputs.

    Raises:
      ValueError: the dataset lacks such a feature, or has no supervised keys.
    """
    if not targets:
        made_for: tuple[Any, ...] = (info.supervised_keys or ())[:2]
        # Some datasets have no supervised keys, and for some a key is a tuple of features.
        if len(made_for) < 2 or not all(isinstance(each, str) for each in made_for):
            raise ValueError(
                f"which features of {info.full_name}? say it with the options inputs and targets: "
                f"{_features(info)}"
            )
        made_for_inputs, targets = made_for
        # Text-only datasets name the same feature twice.
        inputs = inputs or (made_for_inputs if made_for_inputs != targets else "")
    inputs = "" if inputs == _NONE else inputs
    for feature in filter(None, (inputs, targets)):
        if feature not in flat_features(info):
            raise ValueError(f"{info.full_name} has no feature {feature!r}: {_features(info)}")
    return inputs, targets


def flat_features(info: tfds.core.DatasetInfo) -> dict[str, Any]:
    """Returns the features by name; nested features by their path, as in "question/stem"."""
    flat: dict[str, Any] = {}

    def add(prefix: str, features: Mapping[str, Any]) -> None:
        for name, feature in features.items():
            if hasattr(feature, "items"):
                add(f"{prefix}{name}/", feature)
            else:
                flat.setdefault(prefix + name, feature)

    if hasattr(info.features, "items"):  # else it is a tuple or a single feature, without names
        add("", info.features)
    return flat


def _features(info: tfds.core.DatasetInfo) -> str:
    descriptions = [f"{name} ({type(each).__name__})" for name, each in flat_features(info).items()]
    if not descriptions:
        return "its features have no names"
    return f"its features are {', '.join(descriptions)}"
