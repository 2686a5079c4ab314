"""Problems on text and image datasets of TFDS's catalog, under tensor2tensor's names.

Datasets that TFDS makes with Apache Beam (Wikipedia, C4) need the package apache-beam. Names that
end in `_gen` are problems of image generation; other image problems are classification.
"""

from collections.abc import Mapping
from typing import Any

from t2tp import registry
from t2tp.problems import images
from t2tp.problems.data.sample import Sample
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.sources.tfds_source import TfdsSource
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import Text2TextProblem

_32K = 1 << 15
_8K = 1 << 13


@registry.register_problem
class LanguagemodelLm1b32k(TfdsSource, LanguageModelProblem):
    """The One Billion Word benchmark, sentences in random order."""

    dataset = "lm1b"
    dataset_splits = {"train": "train", "validation": "test[:50%]", "test": "test[50%:]"}
    vocabulary_size = _32K


@registry.register_problem
class LanguagemodelWiki40bEn(TfdsSource, LanguageModelProblem):
    """English Wikipedia, cleaned (Wiki-40B)."""

    dataset = "wiki40b/en"
    vocabulary_size = _32K

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Converts the dataset's structure markers to line ends."""
        lines = example["text"].replace("_NEWLINE_", "\n").split("\n")
        marks = ("_START_ARTICLE_", "_START_SECTION_", "_START_PARAGRAPH_")
        paragraphs = [line for line in lines if line and line not in marks]
        return {"text": "\n".join(paragraphs)}


@registry.register_problem
class LanguagemodelC4(TfdsSource, LanguageModelProblem):
    """Cleaned English pages of Common Crawl (C4)."""

    dataset = "c4/en"
    dataset_splits = {
        "train": "train",
        "validation": "validation[:50%]",
        "test": "validation[50%:]",
    }
    vocabulary_size = _32K


@registry.register_problem
class TranslateEndeWmt32k(TfdsSource, Text2TextProblem):
    """English to German, WMT 2014."""

    dataset = "wmt14_translate/de-en"
    vocabulary_size = _32K
    normalization = "nmt_nfkc"
    sample_features = {"inputs": "en", "targets": "de"}


@registry.register_problem
class TranslateEnfrWmt32k(TfdsSource, Text2TextProblem):
    """English to French, WMT 2014."""

    dataset = "wmt14_translate/fr-en"
    vocabulary_size = _32K
    normalization = "nmt_nfkc"
    sample_features = {"inputs": "en", "targets": "fr"}


@registry.register_problem
class SummarizeCnnDailymail32k(TfdsSource, Text2TextProblem):
    """News articles to their highlights, one sentence per line."""

    dataset = "cnn_dailymail"
    vocabulary_size = _32K
    decode_metric_names = ("rouge1", "rouge2", "rouge_l")
    sample_features = {"inputs": "article", "targets": "highlights"}


@registry.register_problem
class SentimentImdb(TfdsSource, Text2ClassProblem):
    """Sentiment of film reviews: negative or positive."""

    dataset = "imdb_reviews"
    dataset_splits = {"train": "train[:90%]", "validation": "train[90%:]", "test": "test"}
    vocabulary_size = _8K
    class_names = ("neg", "pos")
    metric_names = (*Text2ClassProblem.metric_names, "f1")
    sample_features = {"inputs": "text", "label": "label"}


class _Mnist(TfdsSource, images.ImageProblem):
    """Handwritten digits."""

    dataset = "mnist"
    dataset_splits = {"train": "train[:-5000]", "validation": "train[-5000:]", "test": "test"}
    image_shape = (28, 28, 1)


@registry.register_problem
class ImageMnist(_Mnist, images.Image2ClassProblem):
    """Classification of handwritten digits."""

    class_names = tuple("0123456789")


@registry.register_problem
class ImageMnistGen(_Mnist, images.ImageGenerationProblem):
    """Generation of handwritten digits."""


class _Cifar10(TfdsSource, images.ImageProblem):
    """Small photographs."""

    dataset = "cifar10"
    dataset_splits = {"train": "train[:-5000]", "validation": "train[-5000:]", "test": "test"}
    image_shape = (32, 32, 3)


@registry.register_problem
class ImageCifar10(_Cifar10, images.Image2ClassProblem):
    """Classification of small photographs into ten classes."""

    class_names = (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )


@registry.register_problem
class ImageCifar10Gen(_Cifar10, images.ImageGenerationProblem):
    """Generation of small photographs."""


class _Imagenet(TfdsSource, images.ImageProblem):
    """Photographs of a thousand classes, scaled to cover a square and cropped to the square."""

    dataset = "imagenet2012"
    splits = ("train", "validation")  # the labels of test are not public

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Scales the image."""
        image = images.shrink_to_cover(example["image"], *self.image_shape[:2])
        return {"image": image, "label": example["label"]}


_IMAGENET_CLASSES = tuple(map(str, range(1000)))


@registry.register_problem
class ImageImagenet224(_Imagenet, images.Image2ClassProblem):
    """Classification of photographs of 224 x 224 into a thousand classes."""

    image_shape = (224, 224, 3)
    class_names = _IMAGENET_CLASSES
    stored_as_jpeg = True


@registry.register_problem
class ImageImagenet64(_Imagenet, images.Image2ClassProblem):
    """Classification of photographs of 64 x 64 into a thousand classes."""

    image_shape = (64, 64, 3)
    class_names = _IMAGENET_CLASSES


@registry.register_problem
class ImageImagenet32(_Imagenet, images.Image2ClassProblem):
    """Classification of photographs of 32 x 32 into a thousand classes."""

    image_shape = (32, 32, 3)
    class_names = _IMAGENET_CLASSES


@registry.register_problem
class ImageImagenet64Gen(_Imagenet, images.ImageGenerationProblem):
    """Generation of photographs of 64 x 64."""

    image_shape = (64, 64, 3)


@registry.register_problem
class ImageImagenet32Gen(_Imagenet, images.ImageGenerationProblem):
    """Generation of photographs of 32 x 32."""

    image_shape = (32, 32, 3)
