"""What problems with text have in common: a vocabulary, made from the text of the train split."""

from __future__ import annotations

import abc
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from absl import logging

from t2tp.hparam import HParams
from t2tp.problems.characters import CharacterVocabulary, count_characters
from t2tp.problems.generation import Sample, ShuffledSamples
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.sample_digest import TEXTS_NOTE, ChangedSourcesError, DigestedTexts
from t2tp.problems.subwords import SubwordVocabulary, train_subwords
from t2tp.problems.vocabulary import Vocabulary
from t2tp.whole_file import write_bytes, write_text


class TextProblem(Problem):
    """A problem with text in it.

    Attributes:
        vocabulary_kind: "subword", "byte" or "character".
        vocabulary_size: number of tokens wanted, or as many as the texts allow; of bytes there are
            always 259.
        subword_model: "bpe" or "unigram".
        normalization: "none", or "nfkc" or "nmt_nfkc", which sub-words can have.

    Options:
        vocab_size: in place of `vocabulary_size`; the texts must allow it.
        vocabulary_from: the folder of another problem's data, whose vocabulary is used; problems
            that are trained one after the other need the same.
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
        if self.options.vocabulary_from and find_vocabulary(folder) is None:
            home = Path(self.options.vocabulary_from).expanduser()
            return write_vocabulary(folder, load_vocabulary(home))
        texts = self.all_texts(samples(self.splits[0]))
        return self.make_vocabulary_of(folder, texts, "vocab_size" not in self.given_options)

    def make_vocabulary_of(self, folder: Path, texts: Iterable[str], is_ceiling: bool) -> str:
        """Writes a vocabulary that is made from texts, unless there is one.

        Args:
            folder: where it is written.
            texts: its texts.
            is_ceiling: whether it may be smaller than the option says, as nobody asked for it.

        Returns:
            The name of its file.

        Raises:
            ChangedSourcesError: an interrupted run made it, from other texts.
        """
        note, digested = folder / TEXTS_NOTE, DigestedTexts(texts)
        made = find_vocabulary(folder)
        if made is None:
            vocabulary = self.train_vocabulary(digested, is_ceiling)
            write_text(note, json.dumps([digested.count, digested.hexdigest()]))
            return write_vocabulary(folder, vocabulary)
        if note.is_file():  # and not by a mixture's other problems
            count, known = json.loads(note.read_text(encoding="utf-8"))
            for _ in itertools.islice(digested, count):
                pass
            if digested.hexdigest() != known:
                raise ChangedSourcesError(
                    f"{self.name} had other texts when its vocabulary was made, before the "
                    "interruption"
                )
        return made.name

    def train_vocabulary(self, texts: Iterable[str], is_ceiling: bool = False) -> Vocabulary:
        """Makes a vocabulary of the problem's kind and size, or at most this size, from texts."""
        size = self.options.vocab_size
        if self.vocabulary_kind == "byte":
            return CharacterVocabulary()
        logging.info("making a vocabulary of %d tokens", size)
        if self.vocabulary_kind == "character":
            return count_characters(texts, size)
        return train_subwords(texts, size, self.subword_model, self.normalization, is_ceiling)

    def all_texts(self, samples: ShuffledSamples) -> Iterator[str]:
        """Gives the texts of samples, but for those that are left out or bad."""
        for texts in samples.each(self._utf8_texts):
            yield from texts

    def _utf8_texts(self, sample: Sample) -> list[str]:
        texts = self.texts(sample)
        for text in texts:
            text.encode("utf-8")
        return texts

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


def write_vocabulary(folder: Path, vocabulary: Vocabulary) -> str:
    """Writes the vocabulary into a problem's folder, and returns the name of its file."""
    write_bytes(folder / vocabulary.file_name, vocabulary.contents())
    return vocabulary.file_name


def find_vocabulary(folder: Path) -> Path | None:
    """Returns the file of the vocabulary that lies in a problem's folder; None: there is none."""
    files = (folder / kind.file_name for kind in (SubwordVocabulary, CharacterVocabulary))
    return next((file for file in files if file.is_file()), None)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Reads the vocabulary that lies in a problem's folder.

    Raises:
        FileNotFoundError: there is none.
    """
    file = find_vocabulary(folder)
    if file is None:
        raise FileNotFoundError(
            f"no vocabulary in {folder}: neither {SubwordVocabulary.file_name} nor "
            f"{CharacterVocabulary.file_name} is there"
        )
    if file.name == SubwordVocabulary.file_name:
        return SubwordVocabulary(file.read_bytes())
    return CharacterVocabulary.read(file.read_bytes())
