"""The base class of vocabularies: they convert text to token ids and back.

Every token stands for fixed bytes, and decoding concatenates them. In a lossless vocabulary, the
UTF-8 length of a text is the sum of its tokens' lengths, so bits per byte are exact.

All vocabularies that t2tp trains are lossless, unless a normalization is chosen. They have the same
first ids: 0 to 2 are special, and 3 to 258 are the single bytes, with which characters without a
token are encoded. A `tokenizer.json` has other ids, and may change texts (`tokenizer.py`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

PADDING = 0
END_OF_DOCUMENT = 1
UNKNOWN = 2  # SentencePiece requires it; no text needs it, because there are byte pieces

_SPECIAL_NAMES = {PADDING: "<pad>", END_OF_DOCUMENT: "</s>", UNKNOWN: "<unk>"}

# The token of byte b is FIRST_BYTE + b; the tokens from FIRST_PIECE on differ between vocabularies.
FIRST_BYTE = 3
FIRST_PIECE = FIRST_BYTE + 256


class Vocabulary(abc.ABC):
    """A conversion between text and token ids.

    Attributes:
      file_name: name of the vocabulary's file.
      end_of_document: the token that training puts after a text.
      end_ids: the tokens at which generation stops.
      prefix_tokens: the tokens before a text, such as BERT's `[CLS]`; may be empty. A decoder's BOS
        is an hparam of the model and is not among them.
      works_in_graph: whether `encode_in_graph` and `decode_in_graph` can be called.
      is_lossless: whether a text's tokens have exactly the bytes of the text.
    """

    file_name: str
    end_of_document: int = END_OF_DOCUMENT
    end_ids: tuple[int, ...] = (END_OF_DOCUMENT,)
    prefix_tokens: tuple[int, ...] = ()
    works_in_graph: bool = True
    is_lossless: bool = True

    @abc.abstractmethod
    def contents(self) -> bytes:
        """Returns the contents of the vocabulary's file."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text, without an EOS.

        Raises:
          UnicodeEncodeError: the text has a lone surrogate, which UTF-8 cannot encode.
        """

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """Returns the token ids of a text, as `encode`, each with the span of its characters.

        "a fox" may give [(5, 0, 1), (9, 1, 5)]: token 9 stands for " fox", characters 1 to 4.

        Raises:
          ValueError: the vocabulary changes the text.
        """
        ids = self.encode(text)
        if self.decode_bytes(ids) != text.encode("utf-8"):
            raise ValueError("the vocabulary changes this text, so its tokens cannot be located")
        # The index of each byte's character.
        places = [at for at, each in enumerate(text) for _ in each.encode("utf-8")]
        ends = self.byte_lengths[ids].cumsum().tolist()
        begins = [0, *ends[:-1]]
        return [
            (token, places[begin], places[end - 1] + 1)
            for token, begin, end in zip(ids, begins, ends, strict=False)
        ]

    def encode_parts(self, text: str, characters: int = 1 << 16) -> Iterator[list[int]]:
        """Yields the token ids of a text in parts; concatenated, they are the result of `encode`.

        Parts save memory: the ids of a long text need much more memory than the text. `characters`
        is the approximate size of a part.
        """
        yield self.encode(text)

    @abc.abstractmethod
    def encode_in_graph(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of texts, as `encode`, with TensorFlow's operations.

        Args:
          texts: string [texts], UTF-8.

        Returns:
          int32 [texts, (tokens)].
        """

    @cached_property
    @abc.abstractmethod
    def token_bytes(self) -> list[bytes]:
        """The UTF-8 bytes of each token; empty for special tokens."""

    @cached_property
    def token_texts(self) -> list[bytes | str]:
        """The text of each token: its bytes, a special token's name, or "" if it has neither."""
        return [text or self.special_name(n) for n, text in enumerate(self.token_bytes)]

    def special_name(self, token: int) -> str:
        """Returns the name of a token without bytes."""
        return _SPECIAL_NAMES.get(token, "")

    def __len__(self) -> int:
        return len(self.token_bytes)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids; the inverse of `encode`.

        Padding and EOS are dropped. Invalid UTF-8 from a model becomes U+FFFD.

        Raises:
          ValueError: an id is outside the vocabulary.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the UTF-8 bytes of token ids; see `decode`."""
        ids = np.asarray(list(ids) if not isinstance(ids, np.ndarray) else ids, np.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < len(self)):
            raise ValueError(
                f"token ids from {ids.min()} to {ids.max()} are not all in a vocabulary of "
                f"{len(self)} pieces"
            )
        return b"".join(map(self.token_bytes.__getitem__, ids.tolist()))

    def decode_in_graph(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Decodes token ids with TensorFlow's operations; returns their bytes: string [texts].

        `ids` are integers [texts, tokens], padded or ragged.
        """
        import tensorflow as tf

        return tf.strings.reduce_join(tf.gather(tf.constant(self.token_bytes), ids), axis=-1)

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """The number of UTF-8 bytes of each token: int32 [vocab]."""
        return np.array([len(piece) for piece in self.token_bytes], np.int32)


def reserved_token_bytes() -> list[bytes]:
    """Returns the bytes of tokens 0 to 258; special tokens have none."""
    return [b""] * FIRST_BYTE + [bytes([byte]) for byte in range(256)]


def byte_fallback(text: str) -> list[int]:
    """Returns the ids of a text's bytes, for characters without a token."""
    return [FIRST_BYTE + byte for byte in text.encode("utf-8")]
