"""A SentencePiece vocabulary that loses nothing: tabs, newlines, runs of spaces, any Unicode."""

from __future__ import annotations

import heapq
import io
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from t2tp.problems.permutation import mix
from t2tp.problems.vocabulary import END_OF_DOCUMENT, PADDING, UNKNOWN, Vocabulary, spelt

if TYPE_CHECKING:
    import tensorflow as tf

# How SentencePiece writes a space inside its pieces (U+2581).
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"

# Training looks at this many bytes of text; more hardly changes the pieces, only the time.
SAMPLE_BYTES = 32 << 20
# They are of at least so many texts, if there are so many: of a few large ones each has its share.
_SAMPLE_TEXTS = 1000
# Training texts are cut, as SentencePiece drops what is longer than max_sentence_length.
_CHUNK_CHARACTERS = 2000

# A long text is encoded in parts of about so many characters, as SentencePiece needs some 30 bytes
# of memory a character, and Python as many again for a token.
_PART_CHARACTERS = 1 << 16

# SentencePiece's sign for an unknown piece (U+2585): it ignores training texts that have it.
_UNKNOWN_SIGN = "\N{LOWER FIVE EIGHTHS BLOCK}"

# What it says where a vocabulary is larger than the texts allow.
_TOO_MANY = re.compile(r"Please set it to a value <= (\d+)")

# Our word for a text taken as it is, and SentencePiece's; the others are the same.
_NORMALIZATIONS = {"none": "identity", "nfkc": "nfkc", "nmt_nfkc": "nmt_nfkc"}


class SubwordVocabulary(Vocabulary):
    """Pieces of words, and bytes for what has no piece.

    Attributes:
        model: the serialized SentencePiece ModelProto, which tensorflow-text reads too.
    """

    file_name = "vocabulary.model"

    def __init__(self, model: bytes):
        import sentencepiece  # here: its library need not be loaded to import this package

        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def contents(self) -> bytes:
        """Returns the ModelProto."""
        return self.model

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text; see `Vocabulary.encode`."""
        return [token for ids in self.encode_parts(text) for token in ids]

    def encode_parts(self, text: str) -> Iterator[list[int]]:
        """Gives the token ids of a text in parts; see `Vocabulary.encode_parts`."""
        text.encode("utf-8")
        begin = 0
        while begin < len(text):
            found = self._boundary and self._boundary.search(text, begin + _PART_CHARACTERS)
            end = found.start() if found else len(text)
            yield self._encode_part(text[begin:end])
            begin = end

    @cached_property
    def _boundary(self) -> re.Pattern[str] | None:
        """What is before a space that no piece reaches over; None if pieces may do that.

        Those that are trained here have spaces at their beginning only.
        """
        pieces = map(self._processor.id_to_piece, range(self._processor.vocab_size()))
        reach = re.compile(f"[^{_SPACE}]{_SPACE}")
        return None if any(map(reach.search, pieces)) else re.compile("(?<=[!-~])(?= [!-~])")

    def _encode_part(self, text: str) -> list[int]:
        # SentencePiece would read its own sign for a space as a space, so it is spelt in bytes.
        first, *others = self._processor.encode(text.split(_SPACE))
        return first + [token for ids in others for token in (*spelt(_SPACE), *ids)]

    def encode_in_graph(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of texts; see `Vocabulary.encode_in_graph`.

        Raises:
            ModuleNotFoundError: tensorflow-text is not installed; says how to install it.
        """
        import tensorflow as tf

        try:
            import tensorflow_text
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "sub-words inside a TensorFlow graph need tensorflow-text: pip install 't2tp[text]'"
            ) from error
        tokenizer = tensorflow_text.SentencepieceTokenizer(self.model)
        parts = tf.strings.split(texts, _SPACE)  # [texts, (parts)]
        ids = tokenizer.tokenize(parts)  # [texts, (parts), (tokens)]
        sign = tf.tile(tf.constant([spelt(_SPACE)]), [tf.size(parts.flat_values), 1])
        signs = parts.with_values(
            tf.RaggedTensor.from_tensor(sign, row_splits_dtype=parts.row_splits.dtype)
        )
        # Every part has the sign before it; the first one's is cut off.
        joined = tf.concat([signs, ids], axis=-1).merge_dims(1, 2)
        return joined[:, len(spelt(_SPACE)) :]

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """What each piece stands for; see `Vocabulary.token_bytes`."""
        return [self._bytes_of(token) for token in range(self._processor.vocab_size())]

    def _bytes_of(self, token: int) -> bytes:
        if self._processor.is_control(token) or self._processor.is_unknown(token):
            return b""
        piece = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):  # written <0x0A>
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(_SPACE, " ").encode("utf-8")


def train_subwords(
    texts: Iterable[str],
    size: int,
    model_type: str = "bpe",
    normalization: str = "none",
    is_ceiling: bool = False,
) -> SubwordVocabulary:
    """Trains a vocabulary on 32 MiB of the texts.

    The same texts give the same vocabulary, on any number of cores. If the first 32 MiB are a
    thousand texts or more it is these, else pieces of a thousand texts, or of all there are, each
    with its share.

    Args:
        texts: in an order that makes the first ones a fair sample.
        size: number of pieces wanted, of which 259 are the special ones and the single bytes.
        is_ceiling: where the texts do not have so many different pieces, takes those they have,
            and says so.
        model_type: "bpe" (byte-pair encoding) or "unigram" (T. Kudo, Subword Regularization,
            arXiv:1804.10959).
        normalization: "none" keeps every text as it is. "nfkc" and "nmt_nfkc" are Unicode's
            compatibility forms, without and with the changes that translation likes; then a text
            comes back normalized.

    Raises:
        ValueError: the texts do not have that many different pieces, have too many different
            characters for so few, or are empty; or there is no such normalization or model type.
        BaseException: whatever going through `texts` raises comes out as it is.
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
        most = _TOO_MANY.search(str(error))
        if most is None or not is_ceiling:
            raise ValueError(
                f"cannot train a vocabulary of {size} pieces: {_in_our_words(str(error))}"
            ) from error
        logging.warning(
            "the texts allow a vocabulary of at most %s pieces: it has these, and not %d",
            most.group(1),
            size,
        )
    return SubwordVocabulary(_train(chunks, int(most.group(1)), model_type, normalization))


def _train(chunks: Iterable[str], size: int, model_type: str, normalization: str) -> bytes:
    """Returns SentencePiece's ModelProto; raises its RuntimeError."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(chunks),
        model_writer=model,
        model_type=model_type,
        vocab_size=size,
        pad_id=PADDING,
        eos_id=END_OF_DOCUMENT,
        unk_id=UNKNOWN,
        bos_id=-1,
        # Lossless: characters stay as they are, and what has no piece is spelt in bytes.
        byte_fallback=True,
        normalization_rule_name=_NORMALIZATIONS[normalization],
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        # For source code: pieces such as a line's indentation or "(self):\n".
        allow_whitespace_only_pieces=True,
        split_by_unicode_script=False,
        max_sentencepiece_length=32,
        max_sentence_length=4 * _CHUNK_CHARACTERS,  # bytes
        num_threads=2,  # written in the model, so never the machine's number of cores
        minloglevel=2,
    )
    return model.getvalue()


def _sample(texts: Iterable[str]) -> list[str]:
    """Returns pieces of the texts, which have 32 MiB together, in the texts' order.

    Each piece has a random number, a function of its place. Those with the smallest are kept, so
    that all pieces that were gone through have the same chance.
    """
    kept: list[tuple[int, int, str]] = []  # (minus the random number, place, piece): a heap
    size = place = 0
    is_full = False
    for count, text in enumerate(texts, 1):
        pieces = [text[i : i + _CHUNK_CHARACTERS] for i in range(0, len(text), _CHUNK_CHARACTERS)]
        numbers = mix(np.arange(place + 1, place + len(pieces) + 1, dtype=np.uint64)).tolist()
        for number, piece in zip(numbers, pieces, strict=True):
            length = len(piece.encode("utf-8"))
            if size + length > SAMPLE_BYTES and count >= _SAMPLE_TEXTS and not is_full:
                return _in_order(kept)  # the first 32 MiB
            heapq.heappush(kept, (-number, place, piece))
            size += length
            place += 1
            while size > SAMPLE_BYTES:
                is_full = True
                size -= len(heapq.heappop(kept)[2].encode("utf-8"))
        if is_full and count >= _SAMPLE_TEXTS:
            break
    return _in_order(kept)


def _in_order(kept: list[tuple[int, int, str]]) -> list[str]:
    """Returns the pieces of `_sample` as SentencePiece learns from them."""
    pieces = (piece for _, _, piece in sorted(kept, key=lambda each: each[1]))
    return [part for piece in pieces for part in piece.split(_UNKNOWN_SIGN) if part]


def _in_our_words(message: str) -> str:
    """Says what SentencePiece says, without places in its sources and options we do not have."""
    if found := _TOO_MANY.search(message):
        most = found.group(1)
        return (
            f"the texts allow at most {most} pieces: give --vocab_size={most} or less, or "
            f"vocab_size={most} among --problem_options"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        least = found.group(1)
        return (
            f"the texts need at least {least} pieces: give --vocab_size={least} or more, or "
            f"vocab_size={least} among --problem_options"
        )
    if "!sentences_.empty()" in message:
        return "the texts are empty"
    return re.sub(r"^[A-Z_]+: (src/\S+ \[.*?\] )?", "", message)
