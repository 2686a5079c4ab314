"""Codecs: convert between lines of text and a model's tokens.

`Problem.codec` returns a problem's codec. Decoding, scoring, sampling for TensorBoard and exported
models all use it, so that they encode a line in the same way.
"""

import abc
from collections.abc import Iterable, Sequence

from t2tp.problems.vocab.vocabulary import END_OF_DOCUMENT, Vocabulary


class Codec(abc.ABC):
    """A conversion between lines of text and tokens.

    Attributes:
      vocabulary: does the same inside a TensorFlow graph, for exported models that take text;
        None: exported models take tokens.
      eos_id: the token that training puts after a text.
      end_ids: the tokens at which generation stops.
    """

    vocabulary: Vocabulary | None = None
    eos_id: int = END_OF_DOCUMENT
    end_ids: tuple[int, ...] = (END_OF_DOCUMENT,)

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without an EOS.

        Raises:
          ValueError: the text cannot be encoded.
        """

    @abc.abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens; padding and EOS are dropped."""


class TextCodec(Codec):
    """A codec of plain text, by a vocabulary."""

    vocabulary: Vocabulary

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.eos_id, self.end_ids = vocabulary.end_of_document, vocabulary.end_ids

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without an EOS."""
        return self.vocabulary.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        return self.vocabulary.decode(tokens)


class SymbolCodec(Codec):
    """A codec of symbols 0, 1, ..., written as numbers with spaces between them."""

    def __init__(self, problem: str, num_symbols: int, first_token: int):
        """Sets the range of symbols.

        Args:
          problem: its name, for errors.
          num_symbols: number of symbols.
          first_token: the token of symbol 0; those below it are not symbols.
        """
        self._problem = problem
        self._num_symbols = num_symbols
        self._first_token = first_token

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text such as "1 0 1", without an EOS.

        Raises:
          ValueError: one of its words is not a symbol.
        """
        words = text.split()
        if not all(word.isdecimal() and int(word) < self._num_symbols for word in words):
            raise ValueError(
                f"{text!r}: {self._problem} takes numbers from 0 to {self._num_symbols - 1} with "
                "spaces between them"
            )
        return self.tokens(int(word) for word in words)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the numbers of tokens, with spaces between them."""
        return " ".join(map(str, self.symbols(tokens)))

    def tokens(self, symbols: Iterable[int]) -> list[int]:
        """Returns the tokens of symbols."""
        return [self._first_token + symbol for symbol in symbols]

    def symbols(self, tokens: Iterable[int]) -> list[int]:
        """Returns the symbols of tokens; padding and EOS are dropped."""
        return [token - self._first_token for token in tokens if token >= self._first_token]
