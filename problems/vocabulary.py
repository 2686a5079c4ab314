"""A SentencePiece vocabulary that loses nothing: tabs, newlines, runs of spaces, any Unicode.

Every piece stands for fixed bytes, so decoding joins bytes, and the UTF-8 length of a text is the
sum of its tokens' lengths. That makes bits per byte exact.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

PADDING = 0
END_OF_DOCUMENT = 1
UNKNOWN = 2  # SentencePiece wants one; with byte pieces no text needs it.

# How SentencePiece writes a space inside its pieces (U+2581).
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"

# Training looks at this many bytes of text; more hardly changes the pieces, only the time.
_SAMPLE_BYTES = 32 << 20
# Training texts are cut, as SentencePiece drops what is longer than max_sentence_length.
_CHUNK_CHARACTERS = 2000


class Vocabulary:
    """Turns text into token ids and back.

    Attributes:
        model: the serialized SentencePiece ModelProto, which tensorflow-text reads too.
    """

    def __init__(self, model: bytes):
        import sentencepiece  # here: its library need not be loaded to import this package

        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Reads the vocabulary from the file of a ModelProto."""
        return cls(path.read_bytes())

    def __len__(self) -> int:
        return self._processor.vocab_size()

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text, without an end of document.

        Raises:
            UnicodeEncodeError: the text has a lone surrogate, which is not in UTF-8.
        """
        text.encode("utf-8")
        # SentencePiece would read its own sign for a space as a space, so it is spelt in bytes.
        first, *others = self._processor.encode(text.split(_SPACE))
        return first + [token for ids in others for token in (*self._space_sign, *ids)]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids: for those of `encode`, the very text.

        Padding and ends of documents stand for nothing. Bytes that are no UTF-8, as a model may
        write them, become U+FFFD.

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
        return b"".join(map(self._piece_bytes.__getitem__, ids.tolist()))

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """How many bytes of UTF-8 each token stands for: int32 [vocab]."""
        return np.array([len(piece) for piece in self._piece_bytes], np.int32)

    @cached_property
    def _piece_bytes(self) -> list[bytes]:
        return [self._bytes_of(token) for token in range(len(self))]

    def _bytes_of(self, token: int) -> bytes:
        if self._processor.is_control(token) or self._processor.is_unknown(token):
            return b""
        piece = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):  # written <0x0A>
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(_SPACE, " ").encode("utf-8")

    @cached_property
    def _space_sign(self) -> list[int]:
        return [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode("utf-8")]


def train_vocabulary(texts: Iterable[str], size: int) -> Vocabulary:
    """Trains a vocabulary on the first 32 MiB of the texts.

    The same texts give the same vocabulary, on any number of cores.

    Args:
        texts: in an order that makes the first ones a fair sample.
        size: number of pieces wanted, of which 259 are the special ones and the single bytes.

    Raises:
        ValueError: the texts do not have that many different pieces.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_chunks(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            pad_id=PADDING,
            eos_id=END_OF_DOCUMENT,
            unk_id=UNKNOWN,
            bos_id=-1,
            # Lossless: characters stay as they are, and what has no piece is spelt in bytes.
            byte_fallback=True,
            normalization_rule_name="identity",
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
    except RuntimeError as error:
        raise ValueError(
            f"cannot train a vocabulary of {size} pieces on these texts: {error}"
        ) from error
    return Vocabulary(model.getvalue())


def _chunks(texts: Iterable[str]) -> Iterable[str]:
    left = _SAMPLE_BYTES
    for text in texts:
        for begin in range(0, len(text), _CHUNK_CHARACTERS):
            chunk = text[begin : begin + _CHUNK_CHARACTERS]
            left -= len(chunk.encode("utf-8"))
            if left < 0:
                return
            yield chunk
