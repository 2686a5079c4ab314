"""Problems on image datasets of TFDS's catalog, under tensor2tensor's names.

Names that end in `_gen` are problems of image generation; the others are classification.
"""

from collections.abc import Mapping
from typing import Any

from t2tp import registry
from t2tp.problems.data.sample import Sample
from t2tp.problems.images import (
    Image2ClassProblem,
    ImageGenerationProblem,
    ImageProblem,
    shrink_to_cover,
)
from t2tp.problems.sources.tfds_source import TfdsSource


class _Mnist(TfdsSource, ImageProblem):
    """Handwritten digits."""

    dataset = "mnist"
    dataset_splits = {"train": "train[:-5000]", "validation": "train[-5000:]", "test": "test"}
    image_shape = (28, 28, 1)


@registry.register_problem
class ImageMnist(_Mnist, Image2ClassProblem):
    """Classification of handwritten digits."""

    class_names = tuple("0123456789")


@registry.register_problem
class ImageMnistGen(_Mnist, ImageGenerationProblem):
    """Generation of handwritten digits."""


class _Cifar10(TfdsSource, ImageProblem):
    """Small photographs."""

    dataset = "cifar10"
    dataset_splits = {"train": "train[:-5000]", "validation": "train[-5000:]", "test": "test"}
    image_shape = (32, 32, 3)


@registry.register_problem
class ImageCifar10(_Cifar10, Image2ClassProblem):
    """Classification of small photographs into ten classes."""

    class_names = (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )


@registry.register_problem
class ImageCifar10Gen(_Cifar10, ImageGenerationProblem):
    """Generation of small photographs."""


class _Imagenet(TfdsSource, ImageProblem):
    """Photographs of a thousand classes, scaled to cover a square and cropped to the square."""

    dataset = "imagenet2012"
    splits = ("train", "validation")  # the labels of test are not public

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Scales the image."""
        image = shrink_to_cover(example["image"], *self.image_shape[:2])
        return {"image": image, "label": example["label"]}


_IMAGENET_CLASSES = tuple(map(str, range(1000)))


@registry.register_problem
class ImageImagenet224(_Imagenet, Image2ClassProblem):
    """Classification of photographs of 224 x 224 into a thousand classes."""

    image_shape = (224, 224, 3)
    class_names = _IMAGENET_CLASSES
    stored_as_jpeg = True


@registry.register_problem
class ImageImagenet64(_Imagenet, Image2ClassProblem):
    """Classification of photographs of 64 x 64 into a thousand classes."""

    image_shape = (64, 64, 3)
    class_names = _IMAGENET_CLASSES


@registry.register_problem
class ImageImagenet32(_Imagenet, Image2ClassProblem):
    """Classification of photographs of 32 x 32 into a thousand classes."""

    image_shape = (32, 32, 3)
    class_names = _IMAGENET_CLASSES


@registry.register_problem
class ImageImagenet64Gen(_Imagenet, ImageGenerationProblem):
    """Generation of photographs of 64 x 64."""

    image_shape = (64, 64, 3)


@registry.register_problem
class ImageImagenet32Gen(_Imagenet, ImageGenerationProblem):
    """Generation of photographs of 32 x 32."""

    image_shape = (32, 32, 3)
