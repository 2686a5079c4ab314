"""Problems on the pictures of TFDS's catalog, by tensor2tensor's names.

Names that end in `_gen` are of making the pictures, the others of naming what is on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t2tp import registry
from t2tp.problems.generation import Sample
from t2tp.problems.images import (
    Image2ClassProblem,
    ImageGenerationProblem,
    ImageProblem,
    shrink_to_cover,
)
from t2tp.problems.tfds_source import FromTfds


class _Mnist(FromTfds, ImageProblem):
    """Handwritten digits."""

    dataset = "mnist"
    dataset_splits = {"train": "train[:-5000]", "validation": "train[-5000:]", "test": "test"}
    image_shape = (28, 28, 1)


@registry.register_problem
class ImageMnist(_Mnist, Image2ClassProblem):
    """Which handwritten digit it is."""

    class_names = tuple("0123456789")


@registry.register_problem
class ImageMnistGen(_Mnist, ImageGenerationProblem):
    """Handwritten digits themselves."""


class _Cifar10(FromTfds, ImageProblem):
    """Small photographs."""

    dataset = "cifar10"
    dataset_splits = {"train": "train[:-5000]", "validation": "train[-5000:]", "test": "test"}
    image_shape = (32, 32, 3)


@registry.register_problem
class ImageCifar10(_Cifar10, Image2ClassProblem):
    """Which of ten things is on a small photograph."""

    class_names = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )


@registry.register_problem
class ImageCifar10Gen(_Cifar10, ImageGenerationProblem):
    """Small photographs themselves."""


class _Imagenet(FromTfds, ImageProblem):
    """Photographs of a thousand things, scaled to cover a square and cut to it."""

    dataset = "imagenet2012"
    splits = ("train", "validation")  # nobody but its makers has the labels of test

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Scales the picture."""
        image = shrink_to_cover(example["image"], *self.image_shape[:2])
        return {"image": image, "label": example["label"]}


_IMAGENET_CLASSES = tuple(map(str, range(1000)))


@registry.register_problem
class ImageImagenet224(_Imagenet, Image2ClassProblem):
    """Which of a thousand things is on a photograph of 224 x 224."""

    image_shape = (224, 224, 3)
    class_names = _IMAGENET_CLASSES
    stored_as_jpeg = True


@registry.register_problem
class ImageImagenet64(_Imagenet, Image2ClassProblem):
    """Which of a thousand things is on a photograph of 64 x 64."""

    image_shape = (64, 64, 3)
    class_names = _IMAGENET_CLASSES


@registry.register_problem
class ImageImagenet32(_Imagenet, Image2ClassProblem):
    """Which of a thousand things is on a photograph of 32 x 32."""

    image_shape = (32, 32, 3)
    class_names = _IMAGENET_CLASSES


@registry.register_problem
class ImageImagenet64Gen(_Imagenet, ImageGenerationProblem):
    """Photographs of 64 x 64 themselves."""

    image_shape = (64, 64, 3)


@registry.register_problem
class ImageImagenet32Gen(_Imagenet, ImageGenerationProblem):
    """Photographs of 32 x 32 themselves."""

    image_shape = (32, 32, 3)
