"""A SentencePiece vocabulary. Without normalization it is lossless for any Unicode text."""

from __future__ import annotations

import heapq
import io
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from t2tp.optional_import import optional_import
from t2tp.problems.data.permutation import mix
from t2tp.problems.vocab.vocabulary import (
    END_OF_DOCUMENT,
    FIRST_BYTE,
    PADDING,
    UNKNOWN,
    Vocabulary,
    byte_fallback,
)

if TYPE_CHECKING:
    import tensorflow as tf

# SentencePiece's representation of a space (U+2581).
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"

# Bytes of text to train on; more text takes longer and hardly changes the pieces.
SAMPLE_BYTES = 32 << 20
# Training texts are split, because SentencePiece drops texts above max_sentence_length.
_CHUNK_CHARACTERS = 2000

# SentencePiece's marker of an unknown piece (U+2585). Training ignores texts that contain it.
_UNKNOWN_SIGN = "\N{LOWER FIVE EIGHTHS BLOCK}"

# SentencePiece's errors if a vocabulary is larger or smaller than the texts allow.
_TOO_MANY = re.compile(r"Please set it to a value <= (\d+)")
_TOO_FEW = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")

_NORMALIZED_AWAY = "\N{LATIN SMALL LIGATURE FI}  x"  # A ligature and two spaces.
# Our names of normalizations -> SentencePiece's names.
_NORMALIZATIONS = {"none": "identity", "nfkc": "nfkc", "nmt_nfkc": "nmt_nfkc"}


# SentencePiece's options for the ids of special tokens. The 256 bytes follow these tokens.
_SPECIAL_IDS: dict[str, Any] = {
    "pad_id": PADDING,
    "eos_id": END_OF_DOCUMENT,
    "unk_id": UNKNOWN,
    "bos_id": -1,
}


class SubwordVocabulary(Vocabulary):
    """Pieces of words, and bytes for characters without a piece."""

    file_name = "vocabulary.model"

    def __init__(self, model: bytes):
        import sentencepiece  # Here, so that importing this package does not load its library.

        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(f"it is not a model of SentencePiece ({error})") from error
        ids = {name: getattr(self._processor, name)() for name in _SPECIAL_IDS}
        first, last = map(self._processor.piece_to_id, ("<0x00>", "<0xFF>"))
        if ids != _SPECIAL_IDS or (first, last) != (FIRST_BYTE, FIRST_BYTE + 255):
            options = ", ".join(f"{name}={number}" for name, number in _SPECIAL_IDS.items())
            raise ValueError(f"SentencePiece must train it with {options}, byte_fallback=True")

    @cached_property
    def is_lossless(self) -> bool:  # type: ignore[override]
        """Whether the model does not normalize texts."""
        return self.decode(self.encode(_NORMALIZED_AWAY)) == _NORMALIZED_AWAY

    def contents(self) -> bytes:
        """Returns the ModelProto."""
        return self.model

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text; see `Vocabulary.encode`."""
        return [token for ids in self.encode_parts(text) for token in ids]

    def encode_parts(self, text: str, characters: int = 1 << 16) -> Iterator[list[int]]:
        """Yields the token ids of a text in parts; see `Vocabulary.encode_parts`.

        SentencePiece needs about 30 bytes of memory per character; Python needs 30 more per token.
        """
        text.encode("utf-8")
        begin = 0
        while begin < len(text):
            match = self._boundary and self._boundary.search(text, begin + characters)
            end = match.start() if match else len(text)
            yield self._encode_part(text[begin:end])
            begin = end

    @cached_property
    def _boundary(self) -> re.Pattern[str] | None:
        """Matches where a text may be cut: before spaces. None: a piece may cross such a cut."""
        pieces = map(self._processor.id_to_piece, range(self._processor.vocab_size()))
        reach = re.compile(f"[^{_SPACE}]{_SPACE}")
        return None if any(map(reach.search, pieces)) else re.compile("(?<=[!-~])(?= [!-~])")

    def _encode_part(self, text: str) -> list[int]:
        # SentencePiece would decode its own space sign as a space, so a sign in the text becomes
        # byte tokens. The parts between signs are encoded in separate calls: for a list of parts,
        # SentencePiece would start threads, which takes longer than the encoding.
        first, *others = map(self._processor.encode, text.split(_SPACE))
        return first + [token for ids in others for token in (*byte_fallback(_SPACE), *ids)]

    def encode_in_graph(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of texts; see `Vocabulary.encode_in_graph`.

        Raises:
          ModuleNotFoundError: tensorflow-text is not installed.
        """
        import tensorflow as tf

        advice = "sub-words in a TensorFlow graph need tensorflow-text: pip install -e '.[text]'"
        with optional_import(advice):
            import tensorflow_text
        tokenizer = tensorflow_text.SentencepieceTokenizer(self.model)
        parts = tf.strings.split(texts, _SPACE)  # [texts, (parts)]
        ids = tokenizer.tokenize(parts)  # [texts, (parts), (tokens)]
        sign = tf.tile(tf.constant([byte_fallback(_SPACE)]), [tf.size(parts.flat_values), 1])
        signs = parts.with_values(
            tf.RaggedTensor.from_tensor(sign, row_splits_dtype=parts.row_splits.dtype)
        )
        # `joined` has a sign before every part; the first sign is removed.
        joined = tf.concat([signs, ids], axis=-1).merge_dims(1, 2)
        return joined[:, len(byte_fallback(_SPACE)) :]

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of each piece; see `Vocabulary.token_bytes`."""
        return [self._bytes_of(token) for token in range(self._processor.vocab_size())]

    def special_name(self, token: int) -> str:
        """Returns the name of a token without bytes."""
        return self._processor.id_to_piece(token)

    def _bytes_of(self, token: int) -> bytes:
        if self._processor.is_control(token) or self._processor.is_unknown(token):
            return b""
        piece = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):  # such as <0x0A>
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(_SPACE, " ").encode("utf-8")


def train_subwords(
    texts: Iterable[str],
    size: int,
    model_type: str = "bpe",
    normalization: str = "none",
    is_ceiling: bool = False,
) -> SubwordVocabulary:
    """Trains a vocabulary on a sample of at most 32 MiB of the texts.

    The same texts give the same vocabulary, on any number of cores. If the first 32 MiB contain a
    thousand texts or more, the sample is these 32 MiB. Otherwise the sample consists of random
    pieces of the first thousand texts, or of all texts if there are fewer.

    Args:
      texts: the texts, in an order that makes the first texts representative.
      size: target number of pieces, including the 3 special pieces and the 256 single bytes.
      is_ceiling: what to do if the texts have too few distinct pieces. True: train a smaller
        vocabulary, with a warning. False: raise an error.
      model_type: "bpe" (byte-pair encoding) or "unigram" (T. Kudo, arXiv:1804.10959).
      normalization: "none" keeps every text unchanged. "nfkc" is Unicode's compatibility form, and
        "nmt_nfkc" adds SentencePiece's changes for translation. With these two, decoding returns
        the normalized text.

    Raises:
      ValueError: the texts have too few distinct pieces or too many distinct characters for the
        size, or are empty; or the normalization or the model type is unknown.
    """
    if normalization not in _NORMALIZATIONS:
        known = ", ".join(_NORMALIZATIONS)
        raise ValueError(f"no normalization {normalization!r}: there are {known}")
    if model_type not in ("bpe", "unigram"):
        raise ValueError(f"no sub-word model {model_type!r}: there are bpe, unigram")
    chunks = _sample(texts)
    try:
        return SubwordVocabulary(_train(chunks, size, model_type, normalization))
    except RuntimeError as error:
        match = _TOO_MANY.search(str(error))
        if match is None or not is_ceiling:
            raise ValueError(
                f"cannot train a vocabulary of {size} pieces: {_in_our_words(str(error))}"
            ) from error
        logging.warning(
            f"the texts allow a vocabulary of at most {match[1]} pieces: it has these, not {size}"
        )
    return SubwordVocabulary(_train(chunks, int(match.group(1)), model_type, normalization))


def _train(chunks: Iterable[str], size: int, model_type: str, normalization: str) -> bytes:
    """Returns SentencePiece's ModelProto; raises its RuntimeError."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(chunks),
        model_writer=model,
        model_type=model_type,
        vocab_size=size,
        **_SPECIAL_IDS,
        # Lossless: characters are unchanged, and characters without a piece fall back to bytes.
        byte_fallback=True,
        normalization_rule_name=_NORMALIZATIONS[normalization],
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        # For source code: pieces such as a line's indentation or "(self):\n".
        allow_whitespace_only_pieces=True,
        split_by_unicode_script=False,
        max_sentencepiece_length=32,
        max_sentence_length=4 * _CHUNK_CHARACTERS,  # bytes
        num_threads=2,  # stored in the model, so it must not depend on the machine
        minloglevel=2,
    )
    return model.getvalue()


def _sample(
    texts: Iterable[str], max_bytes: int = SAMPLE_BYTES, min_texts: int = 1000
) -> list[str]:
    """Samples pieces of the texts, in the texts' order.

    Each piece has a pseudorandom number, and the pieces with the smallest numbers are kept, so that
    every piece is equally likely to be kept. At least `min_texts` texts are read, so that a few
    large texts do not dominate.
    """
    sampled: list[tuple[int, int, str]] = []  # a heap of (minus the random number, position, piece)
    size = position = 0
    is_full = False
    for count, text in enumerate(texts, 1):
        pieces = [text[i : i + _CHUNK_CHARACTERS] for i in range(0, len(text), _CHUNK_CHARACTERS)]
        numbers = mix(np.arange(position + 1, position + len(pieces) + 1, dtype=np.uint64)).tolist()
        for number, piece in zip(numbers, pieces, strict=True):
            length = len(piece.encode("utf-8"))
            if size + length > max_bytes and count >= min_texts and not is_full:
                return _in_order(sampled)  # all pieces so far
            heapq.heappush(sampled, (-number, position, piece))
            size += length
            position += 1
            while size > max_bytes:
                is_full = True
                size -= len(heapq.heappop(sampled)[2].encode("utf-8"))
        if is_full and count >= min_texts:
            break
    return _in_order(sampled)


def _in_order(sampled: list[tuple[int, int, str]]) -> list[str]:
    """Returns the pieces in the texts' order, split at the sign for unknown characters."""
    pieces = (piece for _, _, piece in sorted(sampled, key=lambda each: each[1]))
    return [part for piece in pieces for part in piece.split(_UNKNOWN_SIGN) if part]


def _in_our_words(message: str) -> str:
    """Rewrites SentencePiece's errors without its source locations and unavailable options."""
    for pattern, bound, other in (
        (_TOO_MANY, "allow at most", "less"),
        (_TOO_FEW, "need at least", "more"),
    ):
        if match := pattern.search(message):
            return (
                f"the texts {bound} {match[1]} pieces: give --vocab_size={match[1]} or {other}, "
                f"or vocab_size={match[1]} among --problem_options"
            )
    if "!sentences_.empty()" in message:
        return "the texts are empty"
    return re.sub(r"^[A-Z_]+: (src/\S+ \[.*?\] )?", "", message)
