"""Problems on text datasets of TFDS's catalog, under tensor2tensor's names.

Datasets that TFDS makes with Apache Beam (Wikipedia, C4) need the package apache-beam.
"""

from collections.abc import Mapping
from typing import Any

from t2tp import registry
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
