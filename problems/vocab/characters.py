"""Vocabularies of single bytes and of single characters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from t2tp.problems.vocab import vocabulary
from t2tp.typed_files import parse_json

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class _CharacterTable:
    """The contents of the file of a `CharacterVocabulary`."""

    characters: str


class CharacterVocabulary(vocabulary.Vocabulary):
    """A token for each of some characters, and byte tokens for all other characters.

    Without characters it is a vocabulary of bytes.
    """

    file_name = "vocabulary.json"

    def __init__(self, characters: str = ""):
        """Sets the characters that have tokens; their ids are 259, 260, ... in this order."""
        self._characters = characters
        self._ids = {
            character: vocabulary.FIRST_PIECE + index for index, character in enumerate(characters)
        }

    @classmethod
    def read(cls, contents: bytes) -> CharacterVocabulary:
        """Reads the vocabulary from the contents of its file."""
        return cls(parse_json(contents, cls.file_name, _CharacterTable).characters)

    def contents(self) -> bytes:
        """Returns the characters as JSON."""
        return (json.dumps({"characters": self._characters}) + "\n").encode()

    def encode(self, text: str) -> list[int]:
        """Returns one or more tokens for each character; see `Vocabulary.encode`."""
        if not self._ids:
            return vocabulary.byte_fallback(text)
        ids: list[int] = []
        for character in text:
            token = self._ids.get(character)
            ids.extend(vocabulary.byte_fallback(character) if token is None else (token,))
        return ids

    def encode_parts(self, text: str, characters: int = 1 << 16) -> Iterator[list[int]]:
        """Yields the token ids of a text in parts; see `Vocabulary.encode_parts`."""
        for begin in range(0, len(text), characters):
            yield self.encode(text[begin : begin + characters])

    def encode_in_graph(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of texts; see `Vocabulary.encode_in_graph`."""
        import tensorflow as tf

        single_bytes = tf.constant(vocabulary.reserved_token_bytes()[vocabulary.FIRST_BYTE :])
        byte_tokens = tf.range(vocabulary.FIRST_BYTE, vocabulary.FIRST_PIECE)
        byte_ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(single_bytes, byte_tokens), default_value=0
        )
        if not self._ids:
            return tf.ragged.map_flat_values(byte_ids.lookup, tf.strings.bytes_split(texts))
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant([character.encode() for character in self._ids]),
                tf.constant(list(self._ids.values())),
            ),
            default_value=0,
        )
        characters = tf.strings.unicode_split(texts, "UTF-8")  # [texts, (characters)]
        own_ids = table.lookup(characters.flat_values)[:, None]
        # Each character has either a token or the tokens of its bytes; the other list is empty.
        others = tf.where(own_ids[:, 0] > 0, "", characters.flat_values)
        ids = tf.concat(
            [
                tf.ragged.boolean_mask(own_ids, own_ids > 0),
                tf.ragged.map_flat_values(byte_ids.lookup, tf.strings.bytes_split(others)),
            ],
            axis=1,
        )
        return characters.with_values(ids).merge_dims(1, 2)

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of each token; see `Vocabulary.token_bytes`."""
        return vocabulary.reserved_token_bytes() + [
            character.encode("utf-8") for character in self._characters
        ]


def count_characters(texts: Iterable[str], size: int) -> CharacterVocabulary:
    """Returns the vocabulary of the most frequent characters of texts.

    `size` is the max number of tokens, including the 259 special tokens and byte tokens.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    # Ties are in Unicode order, so that the order of the texts does not matter.
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    return CharacterVocabulary("".join(frequent[: max(0, size - vocabulary.FIRST_PIECE)]))
