"""What problems with text have in common: a vocabulary, made from the text of the train split."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from absl import logging

from t2tp.hparam import HParams
from t2tp.problems.characters import CharacterVocabulary, count_characters
from t2tp.problems.generation import Sample, ShuffledSamples
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.subwords import SubwordVocabulary, train_subwords
from t2tp.problems.vocabulary import Vocabulary


class TextProblem(Problem):
    """A problem with text in it.

    Attributes:
        vocabulary_kind: "subword", "byte" or "character".
        vocabulary_size: number of tokens wanted; of bytes there are always 259.
        subword_model: "bpe" or "unigram".
        normalization: "none", or "nfkc" or "nmt_nfkc", which sub-words can have.

    Options:
        vocab_size: in place of `vocabulary_size`.
        vocabulary_from: the folder of another problem's data, whose vocabulary is used; problems
            that are mixed, or trained one after the other, need the same.
    """

    vocabulary_kind: ClassVar[str] = "subword"
    vocabulary_size: ClassVar[int] = 8192
    subword_model: ClassVar[str] = "bpe"
    normalization: ClassVar[str] = "none"
    making_options: tuple[str, ...] = ("vocab_size", "vocabulary_from")

    def default_options(self) -> HParams:
        """Declares the vocabulary's options."""
        options = super().default_options()
        options.add("vocab_size", self.vocabulary_size, help="tokens of the vocabulary")
        options.add("vocabulary_from", "", help="folder of the problem whose vocabulary is used")
        return options

    @abc.abstractmethod
    def texts(self, sample: Sample) -> list[str]:
        """Returns the texts of a sample, which the vocabulary is made from."""

    def make_vocabulary(self, folder: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the vocabulary; see `Problem.make_vocabulary`."""
        if self.options.vocabulary_from:
            vocabulary = load_vocabulary(Path(self.options.vocabulary_from).expanduser())
        else:
            vocabulary = self._new_vocabulary(self._all_texts(samples(self.splits[0])))
        path = folder / vocabulary.file_name
        if not path.exists():
            partial = path.with_name(f".{path.name}.partial")
            partial.write_bytes(vocabulary.contents())
            partial.rename(path)
        return path.name

    def _new_vocabulary(self, texts: Iterable[str]) -> Vocabulary:
        size = self.options.vocab_size
        if self.vocabulary_kind == "byte":
            return CharacterVocabulary()
        logging.info("making a vocabulary of %d tokens", size)
        if self.vocabulary_kind == "character":
            return count_characters(texts, size)
        return train_subwords(texts, size, self.subword_model, self.normalization)

    def _all_texts(self, samples: Iterable[Sample]) -> Iterator[str]:
        for sample in samples:
            yield from self.texts(sample)

    def vocabulary(self, data_dir: AnyPath) -> Vocabulary:
        """Loads the vocabulary of prepared data."""
        self.check_prepared(data_dir)
        return load_vocabulary(self.folder(data_dir))

    def encode(self, data_dir: AnyPath, text: str) -> list[int]:
        """Returns the token ids of a text, without an end of document."""
        return self.vocabulary(data_dir).encode(text)

    def decode(self, data_dir: AnyPath, ids: Iterable[int]) -> str:
        """Returns the text of token ids, for those of `encode` the very text."""
        return self.vocabulary(data_dir).decode(ids)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Reads the vocabulary that lies in a problem's folder.

    Raises:
        FileNotFoundError: there is none.
    """
    subwords, characters = (
        folder / kind.file_name for kind in (SubwordVocabulary, CharacterVocabulary)
    )
    if subwords.is_file():
        return SubwordVocabulary(subwords.read_bytes())
    if characters.is_file():
        return CharacterVocabulary.read(characters.read_bytes())
    raise FileNotFoundError(
        f"no vocabulary in {folder}: neither {subwords.name} nor {characters.name} is there"
    )
