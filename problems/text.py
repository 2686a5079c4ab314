"""The base class of problems with text: it trains a vocabulary on the texts of the train split."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from absl import logging

from t2tp.hparam import HParams
from t2tp.problems.data.manifest import Manifest
from t2tp.problems.data.sample import Sample, text_of
from t2tp.problems.data.shards import token_dtype
from t2tp.problems.prepare.split_samples import ShuffledSamples
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.vocab.characters import CharacterVocabulary, count_characters
from t2tp.problems.vocab.special_tokens import TOKENIZER_FILE
from t2tp.problems.vocab.subwords import train_subwords
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.problems.vocab.vocabulary_file import (
    find_vocabulary,
    load_vocabulary,
    vocabulary_sha256,
    write_vocabulary,
)


class TextProblem(Problem):
    """A problem with text.

    Attributes:
      vocabulary_kind: "subword", "byte" or "character".
      vocabulary_size: target number of tokens; a small corpus may give fewer. Byte vocabularies
        always have 259 tokens.
      subword_model: "bpe" or "unigram".
      normalization: "none", or for sub-words also "nfkc" or "nmt_nfkc".
      token_columns: name of a text in a sample -> the stored column with the text's tokens.

    Options:
        vocab_size: overrides `vocabulary_size`; it is an error if the texts allow fewer tokens.
        vocabulary_from: directory of another problem's data, whose vocabulary is used. A model that
            is trained on one problem after another needs the same vocabulary for all.
    """

    vocabulary_kind: ClassVar[str] = "subword"
    vocabulary_size: ClassVar[int] = 8192
    subword_model: ClassVar[str] = "bpe"
    normalization: ClassVar[str] = "none"
    token_columns: ClassVar[Mapping[str, str]]

    def default_options(self) -> HParams:
        """Declares the vocabulary's options."""
        options = super().default_options()
        options.add("vocab_size", self.vocabulary_size, help="number of tokens", min=3, max=10**9)
        options.add("vocabulary_from", "", help="directory of the problem whose vocabulary is used")
        return options

    @property
    def _lender(self) -> Path:
        """The directory that `vocabulary_from` names."""
        return Path(self.options.vocabulary_from).expanduser()

    def data_dependencies(self) -> dict[str, Any]:
        """Returns the dependencies, with the checksum of `vocabulary_from`'s vocabulary."""
        checksums = {}
        if self.options.vocabulary_from:
            checksums["vocabulary"] = vocabulary_sha256(self._lender)
        return {**super().data_dependencies(), **checksums}

    def changed_sources(self, directory: Path) -> str:
        """Describes the sources that have changed, including another problem's vocabulary."""
        changed = super().changed_sources(directory)
        manifest = Manifest.read(directory)
        source = Path(str(manifest.options.get("vocabulary_from") or directory)).expanduser()
        if find_vocabulary(source) is None or vocabulary_sha256(source) == manifest.vocabulary:
            return changed
        return "; ".join(filter(None, [changed, f"the vocabulary in {source}"]))

    def texts(self, sample: Sample) -> list[str]:
        """Returns the texts of a sample, on which the vocabulary is trained."""
        return [text_of(sample, name) for name in self.token_columns]

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtype of the tokens."""
        dtype = token_dtype(len(load_vocabulary(directory)))
        return dict.fromkeys(self.token_columns.values(), dtype)

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns the decoder of the texts."""
        decode, names = load_vocabulary(directory).decode, self.token_columns
        return lambda columns: {name: decode(columns[each]) for name, each in names.items()}

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of tokens, the same for all texts."""
        return dict.fromkeys(self.token_columns.values(), len(self.vocabulary(data_dir)))

    def make_vocabulary(self, directory: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the vocabulary; see `Problem.make_vocabulary`."""
        texts = self.all_texts(samples(self.splits[0]))
        return self.make_vocabulary_of(directory, texts, "vocab_size" not in self.given_options)

    def make_vocabulary_of(self, directory: Path, texts: Iterable[str], is_ceiling: bool) -> str:
        """Trains the vocabulary, or copies it from `vocabulary_from`, unless the directory has one.

        `is_ceiling` is set if the user has not given `vocab_size`: a vocabulary with fewer tokens
        than the default is then no error.

        Returns:
          The name of the vocabulary's file.
        """
        if existing := find_vocabulary(directory):
            return existing.name
        if self.options.vocabulary_from:
            return write_vocabulary(directory, load_vocabulary(self._lender))
        return write_vocabulary(directory, self.train_vocabulary(texts, is_ceiling))

    def train_vocabulary(self, texts: Iterable[str], is_ceiling: bool = False) -> Vocabulary:
        """Trains a vocabulary of the problem's kind; `is_ceiling` as in `make_vocabulary_of`."""
        size = self.options.vocab_size
        if self.vocabulary_kind == "byte":
            return CharacterVocabulary()
        logging.info(f"making a vocabulary of {'at most ' * is_ceiling}{size} tokens")
        if self.vocabulary_kind == "character":
            return count_characters(texts, size)
        return train_subwords(texts, size, self.subword_model, self.normalization, is_ceiling)

    def all_texts(self, samples: ShuffledSamples) -> Iterator[str]:
        """Yields the texts of all samples except skipped and bad samples."""
        for texts in samples.each(self._utf8_texts):
            yield from texts

    def _utf8_texts(self, sample: Sample) -> list[str]:
        texts = self.texts(sample)
        for text in texts:
            text.encode("utf-8")
        return texts

    def vocabulary(self, data_dir: AnyPath) -> Vocabulary:
        """Loads the vocabulary of prepared data.

        Without data, loads a `tokenizer.json` in `data_dir` itself, which is enough for decoding.
        """
        directory = self.directory(data_dir)
        if not directory.exists() and (Path(data_dir) / TOKENIZER_FILE).is_file():
            return load_vocabulary(Path(data_dir))
        self.check_prepared(data_dir)
        return load_vocabulary(directory)

    def codec(self, data_dir: AnyPath) -> Vocabulary | None:
        """Returns the vocabulary; None if targets are classes."""
        return self.vocabulary(data_dir) if self.writes_tokens else None
