"""The vocabulary of a Hugging Face model: its `tokenizer.json`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from t2tp import typed_files
from t2tp.optional_import import optional_import
from t2tp.problems.vocab.special_tokens import (
    CONFIG_FILES,
    MAX_TOKENS,
    TOKENIZER_FILE,
    AddedTokens,
    read_special_tokens,
)
from t2tp.problems.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

# Max factor by which replacements may lengthen a text.
_MAX_GROWTH = 1 << 10
# Types of the entries that are read here; the library reads all.
_PART: typed_files.Schema = {
    "type": str,
    "normalizers": list[dict[str, Any]],
    "decoders": list[dict[str, Any]],
    "pattern": dict[str, str],
    "content": str,
    "prepend": str,
    "precompiled_charsmap": str,
}
_FIELDS: typed_files.Schema = {
    "model": {"vocab": Annotated[Any, typed_files.MaxEntries(MAX_TOKENS)]},
    "added_tokens": AddedTokens,
}

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True)
class _TokenizerFile:
    """The contents of the file of a `TokenizerVocabulary`: the arguments of its constructor."""

    tokenizer: str
    eos_token: str
    begin_token: str | None = None
    end_ids: tuple[typed_files.Count, ...] = ()


class TokenizerVocabulary(Vocabulary):
    """The tokens of a tokenizer, with the ids that its model knows.

    The byte pieces of GPT-2 and Llama 3 are lossless. Other tokenizers change texts, for example to
    lower case, and decoding then returns the changed text. A token may decode to other bytes at the
    beginning of a text; `token_bytes` has its bytes in the middle of a text.
    """

    file_name = "vocabulary.tokenizer.json"
    works_in_graph = False
    is_lossless = False  # Some tokenizers are, but the file does not say so.

    def __init__(
        self,
        tokenizer: str,
        eos_token: str,
        begin_token: str | None = None,
        end_ids: Sequence[int] = (),
    ):
        """Loads the tokenizer.

        `tokenizer` is the contents of `tokenizer.json`. Training puts `eos_token` after a text, and
        `begin_token`, if any, before it. `end_ids` are further tokens at which generation stops.

        Raises:
          ModuleNotFoundError: `tokenizers` is not installed.
          ValueError: the contents are not a tokenizer, or lack a token.
        """
        advice = f"{TOKENIZER_FILE} needs the library tokenizers: pip install -e '.[text]'"
        with optional_import(advice):
            import tokenizers
        self._text, self._eos_token, self._begin_token = tokenizer, eos_token, begin_token
        fields = typed_files.parse_json(
            tokenizer, TOKENIZER_FILE, _FIELDS, typed_files.MAX_TOKENIZER_BYTES
        )
        added = fields.get("added_tokens") or ()
        self._special = {each["id"] for each in added if each.get("special")}
        self._kinds = {part.get("type", "") for part in _parts(fields.get("decoder"))}
        _check_growth([*_parts(fields.get("normalizer")), *_parts(fields.get("decoder"))])
        self._tokenizer = _safely(tokenizers.Tokenizer.from_str, tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.end_of_document = self._token(eos_token, "end")
        self.end_ids = tuple(dict.fromkeys([self.end_of_document, *end_ids]))
        if begin_token:
            self.prefix_tokens = (self._token(begin_token, "begin"),)

    @classmethod
    def read(cls, contents: bytes) -> TokenizerVocabulary:
        """Reads the vocabulary from the contents of its file."""
        fields = typed_files.parse_json(
            contents, cls.file_name, _TokenizerFile, 2 * typed_files.MAX_TOKENIZER_BYTES
        )
        return cls(**vars(fields))

    @classmethod
    def from_directory(cls, directory: Path) -> TokenizerVocabulary:
        """Reads the tokenizer in a Hugging Face directory.

        Raises:
          ValueError: the directory's files name no token that ends a text, or are damaged.
        """
        text = typed_files.read_text(
            typed_files.file_inside(directory, TOKENIZER_FILE), typed_files.MAX_TOKENIZER_BYTES
        )
        special = read_special_tokens(directory)
        if not special.end:
            raise ValueError(
                f"{directory / CONFIG_FILES[0]} has no eos_token, so that texts would have no end:"
                ' write {"eos_token": "..."} into it'
            )
        return cls(text, special.end, special.begin, special.end_ids)

    def contents(self) -> bytes:
        """Returns the tokenizer and the tokens that begin and end texts as JSON."""
        fields = _TokenizerFile(self._text, self._eos_token, self._begin_token, self.end_ids)
        return (json.dumps(asdict(fields), indent=1) + "\n").encode()

    def _token(self, token: str, verb: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"{TOKENIZER_FILE} has no token {token!r} to {verb} a text with")
        return found

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text; see `Vocabulary.encode`."""
        return self._encoding(text).ids

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Returns the token ids of a text, with the tokens that the tokenizer adds, such as BOS."""
        return _safely(self._tokenizer.encode, text, add_special_tokens=True).ids

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """Returns token ids with their characters; see `Vocabulary.encode_spans`."""
        encoding = self._encoding(text)
        return [(token, *at) for token, at in zip(encoding.ids, encoding.offsets, strict=True)]

    def _encoding(self, text: str) -> Any:
        text.encode("utf-8")
        return _safely(self._tokenizer.encode, text, add_special_tokens=False)

    def encode_in_graph(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Raises ValueError, because TensorFlow has no operations of the tokenizer."""
        raise ValueError(f"TensorFlow has no operations of {TOKENIZER_FILE}")

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids; see `Vocabulary.decode`."""
        ids = [int(token) for token in ids]
        outside = [token for token in ids if not 0 <= token < len(self)]
        if outside:
            raise ValueError(f"token {outside[0]} is not in a vocabulary of {len(self)} pieces")
        return _safely(self._tokenizer.decode, ids, skip_special_tokens=True)

    def special_name(self, token: int) -> str:
        """Returns the name of a special token; "" if no token has this id."""
        return self._tokenizer.id_to_token(token) or ""

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of each token; see `Vocabulary.token_bytes`."""
        size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if size > MAX_TOKENS:
            raise ValueError(
                f"{TOKENIZER_FILE} has {size:,} tokens: at most {MAX_TOKENS:,} are read"
            )
        pieces = [self._tokenizer.id_to_token(token) or "" for token in range(size)]
        return [
            b"" if token in self._special else _bytes_of(piece, self._kinds)
            for token, piece in enumerate(pieces)
        ]


def _safely(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Calls the library, and converts its errors; its panics are not even an `Exception`."""
    try:
        return call(*args, **kwargs)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        raise ValueError(f"{TOKENIZER_FILE} cannot be used by its library: {error}") from error


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """Yields a normalizer or decoder, and the parts of a sequence of them."""
    if part is None:
        return
    part = typed_files.convert(part, _PART, TOKENIZER_FILE)
    yield part
    for each in (*(part.get("normalizers") or ()), *(part.get("decoders") or ())):
        yield from _parts(each)


def _check_growth(parts: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError if short texts could become so long that they fill the memory."""
    growth = 1.0
    for part in parts:
        if part.get("type") == "Replace":
            replaced, content = (part.get("pattern") or {}).get("String"), part.get("content") or ""
            growth *= max(1.0, len(content) / len(replaced)) if replaced else 1 + len(content)
        growth += len(part.get("prepend") or "")
        if growth > _MAX_GROWTH:
            raise ValueError(f"{TOKENIZER_FILE}: its normalizer or decoder makes texts far longer")
        # The library reserves as much memory as the table says that it has.
        charsmap = base64.b64decode(part.get("precompiled_charsmap") or "")
        if charsmap and int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
            raise ValueError(f"{TOKENIZER_FILE}: its table of characters is damaged")


def _bytes_of(piece: str, kinds: set[str]) -> bytes:
    if "ByteLevel" in kinds and all(character in _BYTES for character in piece):
        return bytes(_BYTES[character] for character in piece)
    if "WordPiece" in kinds:
        return (piece[2:] if piece.startswith("##") else f" {piece}").encode()
    if "ByteFallback" in kinds and len(piece) == 6 and piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(_SPACE, " ").encode()


def _byte_characters() -> dict[str, int]:
    """Returns the characters that stand for bytes in GPT-2's pieces.

    Printable characters stand for themselves. The characters from 256 on stand for the other bytes,
    in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_characters()
