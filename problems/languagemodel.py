"""Language modelling: predict each token of running text from those before it.

The documents come from a TFDS dataset. `generate` trains a vocabulary on the train split, writes
the tokens of each split in a fixed shuffled order of the documents, and keeps the dataset beside
them. The files of the folder:

    vocabulary.model                  SentencePiece
    train.tokens, train.documents     see token_files.py; the same for the other splits
    dataset/                          as TFDS wrote it
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from t2tp.problems.manifest import SplitSizes
from t2tp.problems.packing import FEATURES, PackedWindows
from t2tp.problems.permutation import permute
from t2tp.problems.problem import TRAIN, AnyPath, Generated, Problem, check_positive
from t2tp.problems.progress import progress
from t2tp.problems.stream import Batch, FeatureSpec
from t2tp.problems.token_files import TokenFile, TokenWriter
from t2tp.problems.vocabulary import END_OF_DOCUMENT, Vocabulary, train_vocabulary

if TYPE_CHECKING:  # importing it takes seconds, and only generating needs it
    import tensorflow_datasets as tfds

VOCABULARY_FILE = "vocabulary.model"


class LanguageModelProblem(Problem):
    """Packed language modelling on the text of a TFDS dataset.

    Attributes:
        vocabulary_size: number of SentencePiece pieces.
        text_feature: the feature of the dataset that holds the text of a document.
    """

    vocabulary_size = 8192
    text_feature = "text"

    @abc.abstractmethod
    def dataset_builder(self, folder: Path) -> tfds.core.DatasetBuilder:
        """Returns the builder of the dataset, which is to lie in `folder`.

        Its file format must have random access (ArrayRecord). TFDS's default, TFRecord, can only
        be read from the front.
        """

    @abc.abstractmethod
    def origin(self, builder: tfds.core.DatasetBuilder) -> dict[str, Any]:
        """Says for the manifest where the dataset, now prepared, came from."""

    def generate(self, folder: Path, tmp_dir: Path) -> Generated:
        """Makes the dataset, the vocabulary and the tokens; see `Problem.generate`."""
        import tensorflow_datasets as tfds

        tfds.disable_progress_bar()  # its bars are drawn in logs too; ours are not
        builder = self.dataset_builder(folder / "dataset")
        builder.download_and_prepare(
            download_dir=tmp_dir,
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
        )
        texts = {
            split: _ShuffledTexts(builder.as_data_source(split), self.text_feature)
            for split in self.splits
        }
        logging.info("training a vocabulary of %d pieces", self.vocabulary_size)
        vocabulary = train_vocabulary(texts[TRAIN], self.vocabulary_size)
        (folder / VOCABULARY_FILE).write_bytes(vocabulary.model)
        sizes = {split: _write_split(folder, split, vocabulary, texts[split]) for split in texts}
        return Generated(self.origin(builder), sizes)

    def vocabulary(self, data_dir: AnyPath) -> Vocabulary:
        """Loads the vocabulary of prepared data."""
        self.check_prepared(data_dir)
        return Vocabulary.load(self.folder(data_dir) / VOCABULARY_FILE)

    def vocab_size(self, data_dir: AnyPath) -> int:
        """Returns the number of pieces."""
        return len(self.vocabulary(data_dir))

    def encode(self, data_dir: AnyPath, text: str) -> list[int]:
        """Returns the token ids of a text, without an end of document."""
        return self.vocabulary(data_dir).encode(text)

    def decode(self, data_dir: AnyPath, ids: Iterable[int]) -> str:
        """Returns the text of token ids, for those of `encode` the very text."""
        return self.vocabulary(data_dir).decode(ids)

    def features(self, batch_size: int, length: int) -> dict[str, FeatureSpec]:
        """Returns targets, targets_segmentation and targets_position; see `PackedWindows`."""
        check_positive(batch_size=batch_size, length=length)
        return dict(FEATURES)

    def examples(self, data_dir: AnyPath, split: str, length: int) -> PackedWindows:
        """Returns the windows of a split; see `Problem.examples`."""
        vocabulary = Vocabulary.load(self.folder(data_dir) / VOCABULARY_FILE)
        return PackedWindows(self._tokens(data_dir, split, len(vocabulary)), length, vocabulary)

    def counts(self, batch: Batch) -> dict[str, float]:
        """Counts "bytes": of the batch's text in UTF-8. The end of a document counts none."""
        return {"bytes": float(batch.source.count_bytes(batch.examples))}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Adds bits_per_byte to the figures of `Problem.metrics`."""
        return {
            **super().metrics(sums),
            "bits_per_byte": sums["nll"] / math.log(2) / sums["bytes"],
        }

    def split_text(self, data_dir: AnyPath, split: str) -> bytes:
        """Returns the text that a split's tokens stand for: its documents end to end, in UTF-8."""
        self.check_split(split)
        vocabulary = self.vocabulary(data_dir)
        return vocabulary.decode_bytes(self._tokens(data_dir, split, len(vocabulary)).tokens)

    def unigram_bits_per_byte(self, data_dir: AnyPath, split: str = "validation") -> float:
        """Returns the bits per byte of a model that knows only how frequent each token is.

        Frequencies are counted on the train split, plus one each. Like a model's, the figure
        includes the prediction of the ends of documents.
        """
        self.check_split(split)
        sizes = self.check_prepared(data_dir).splits[split]
        vocab_size = self.vocab_size(data_dir)
        known = self._tokens(data_dir, TRAIN, vocab_size).counts(vocab_size) + 1
        seen = self._tokens(data_dir, split, vocab_size).counts(vocab_size)
        bits = -(seen * np.log2(known / known.sum())).sum()
        return float(bits / sizes.bytes)

    def _tokens(self, data_dir: AnyPath, split: str, vocab_size: int) -> TokenFile:
        return TokenFile(self.folder(data_dir), split, vocab_size)


class _ShuffledTexts:
    """The texts of a dataset's split, in an order that is always the same.

    Neighbours in a dataset are often alike. Shuffled, they make fair samples, and fair batches too.
    """

    def __init__(self, source: Sequence[Mapping[str, Any]], feature: str):
        self._source = source
        self._feature = feature

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[str]:
        order = permute(np.arange(len(self)), len(self), "documents")
        for document in order.tolist():
            yield self._source[document][self._feature].decode("utf-8")


def _write_split(
    folder: Path, split: str, vocabulary: Vocabulary, texts: _ShuffledTexts
) -> SplitSizes:
    text_bytes = 0
    with TokenWriter(folder, split, len(vocabulary)) as writer:
        for text in progress(texts, len(texts), f"encoding {split}"):
            writer.write([*vocabulary.encode(text), END_OF_DOCUMENT])
            text_bytes += len(text.encode("utf-8"))
    return SplitSizes(writer.documents, writer.tokens, text_bytes)
