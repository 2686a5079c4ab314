"""Codecs: convert between lines of text and a model's tokens.

`Problem.codec` returns a problem's codec; for problems with text it is the vocabulary. Decoding,
scoring, samples for TensorBoard and exported models all encode a line with the codec.
"""

from collections.abc import Iterable

from t2tp.problems.vocab.vocabulary import END_OF_DOCUMENT, Vocabulary


class SymbolCodec:
    """A codec of symbols 0, 1, ..., written as numbers with spaces between them."""

    end_of_document = END_OF_DOCUMENT
    end_ids = (END_OF_DOCUMENT,)

    def __init__(self, problem: str, num_symbols: int, first_token: int):
        """Sets the problem's name, for errors, and the range of symbols.

        Tokens below `first_token`, the token of symbol 0, are not symbols.
        """
        self._problem = problem
        self._num_symbols = num_symbols
        self._first_token = first_token

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text such as "1 0 1", without an EOS.

        Raises:
          ValueError: a word of the text is not a symbol.
        """
        words = text.split()
        if not all(word.isdecimal() and int(word) < self._num_symbols for word in words):
            raise ValueError(
                f"{text!r}: {self._problem} takes numbers from 0 to {self._num_symbols - 1} with "
                "spaces between them"
            )
        return self.tokens(int(word) for word in words)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the symbols of tokens as numbers with spaces between them."""
        return " ".join(map(str, self.symbols(tokens)))

    def tokens(self, symbols: Iterable[int]) -> list[int]:
        """Returns the tokens of symbols."""
        return [self._first_token + symbol for symbol in symbols]

    def symbols(self, tokens: Iterable[int]) -> list[int]:
        """Returns the symbols of tokens; padding and EOS are dropped."""
        return [token - self._first_token for token in tokens if token >= self._first_token]


# The common interface: `encode`, `decode`, `end_of_document` and `end_ids`.
Codec = Vocabulary | SymbolCodec
