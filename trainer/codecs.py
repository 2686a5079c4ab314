"""Between what people write and the symbols that a problem's models read and write."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from os import PathLike

import numpy as np

from t2tp.decoding import Request
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.problem import Problem
from t2tp.problems.text_to_text import PairProblem, Text2TextProblem
from t2tp.problems.vocabulary import END_OF_DOCUMENT
from t2tp.trainer.errors import UsageError


class Codec(abc.ABC):
    """Encodes and decodes for a problem.

    Attributes:
      reads_inputs: whether its models read inputs; else what is given is how targets begin.
    """

    reads_inputs = True

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the symbols of a text, without an end.

        Raises:
          ValueError: the text has none.
        """

    @abc.abstractmethod
    def decode(self, symbols: Sequence[int]) -> str:
        """Returns the text of symbols."""

    def request(self, text: str, beginning: str = "") -> Request:
        """What is to be decoded for a line.

        Args:
          text: inputs, which get their end; or a prompt.
          beginning: how the targets for inputs begin.

        Raises:
          ValueError: a prompt has another beginning; or see `encode`.
        """
        if self.reads_inputs:
            inputs = [*self.encode(text), END_OF_DOCUMENT]
            return Request(inputs=inputs, prefix=self.encode(beginning))
        if beginning:
            raise ValueError("a prompt is itself how a language model's text begins")
        return Request(prefix=self.encode(text))


class _TextCodec(Codec):
    """Of problems with a vocabulary."""

    def __init__(
        self, problem: Text2TextProblem | LanguageModelProblem, data_dir: str | PathLike[str]
    ) -> None:
        self._vocabulary = problem.vocabulary(data_dir)
        self.reads_inputs = isinstance(problem, PairProblem)

    def encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)

    def decode(self, symbols: Sequence[int]) -> str:
        return self._vocabulary.decode(symbols)


class _NumberCodec(Codec):
    """Of problems with numbers for symbols: written with spaces between them."""

    def __init__(self, problem: AlgorithmicProblem, data_dir: str | PathLike[str]) -> None:
        self._problem = problem
        self._encode = problem.encoder(problem.folder(data_dir))

    def encode(self, text: str) -> list[int]:
        most = self._problem.num_symbols
        words = text.split()
        if not all(word.isdecimal() and int(word) < most for word in words):
            raise ValueError(
                f"{text!r}: {self._problem.name} takes numbers from 0 to {most - 1} with spaces"
                " between them"
            )
        return (
            self._encode({"inputs": [int(word) for word in words]}).columns["inputs"].tolist()[:-1]
        )

    def decode(self, symbols: Sequence[int]) -> str:
        return " ".join(map(str, self._problem.symbols(np.array(symbols, np.int64))))


def codec_of(problem: Problem, data_dir: str | PathLike[str]) -> Codec:
    """Makes the codec of a problem.

    Raises:
      UsageError: there is nothing to write for it, as for problems with classes.
    """
    if isinstance(problem, (Text2TextProblem, LanguageModelProblem)):
        return _TextCodec(problem, data_dir)
    if isinstance(problem, AlgorithmicProblem):
        return _NumberCodec(problem, data_dir)
    raise UsageError(
        f"{problem.name} does not go from text or symbols to text or symbols: there is nothing to"
        " decode (t2tp_trainer --schedule=evaluate evaluates it, t2tp_exporter exports its model)"
    )
