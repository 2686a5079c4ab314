"""Packed examples: a split's documents are concatenated and cut into windows of equal length.

No token is lost, and only the last window has padding. Segments mark the documents, so that tokens
do not attend to other documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from t2tp.problems.data.batch_stream import EMPTY
from t2tp.problems.data.columns import Column
from t2tp.problems.data.fields import INT, NumberField, fill_rows, token_specs

if TYPE_CHECKING:
    from t2tp.problems.vocab.vocabulary import Vocabulary

_TOKENS = token_specs("targets")
_KINDS = dict(zip(_TOKENS, ("tokens", "segmentation", "position"), strict=True))
PREVIOUS = "targets_previous"
FEATURES = {**_TOKENS, PREVIOUS: NumberField.spec}


@dataclass(frozen=True, eq=False)
class PackedWindows:
    """Windows of a split: example i is `length` tokens from i * length on; an `ExampleSource`.

    The features are int32 [batch, length] (`targets_previous`: [batch]), and 0 for padding:

    targets: token ids.
    targets_segmentation: the index of the document in the window, from 1.
    targets_position: position of the token in its document, from 0. A document that began in an
        earlier window counts from the window's start, so a position is always below `length`.
    targets_previous: the token before the window, from which the window's first token is predicted.
        0 for the first window and, with `separate`, if a document begins with the window.

    Attributes:
      separate: whether each document of a window is a segment. Otherwise the window is a single
        segment, and tokens attend to earlier documents.
      text_bytes: UTF-8 length of the split's texts. Default: the sum of their tokens' lengths.
    """

    features = FEATURES

    column: Column
    length: int
    vocabulary: Vocabulary
    separate: bool = True
    text_bytes: int | None = None

    def __len__(self) -> int:
        return -(-self.column.size // self.length)

    def shape(self, feature: str) -> tuple[int, ...]:
        """Returns (length,); for `targets_previous` ()."""
        return () if feature == PREVIOUS else (self.length,)

    def read(self, feature: str, examples: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of windows; see `ExampleSource.read`."""
        begins = np.where(examples == EMPTY, 0, examples * self.length)
        if feature == PREVIOUS:
            tokens = self.column.values(np.maximum(begins - 1, 0)).astype(INT)
            ends_document = self.separate & (tokens == self.vocabulary.end_of_document)
            return np.where((begins == 0) | ends_document, 0, tokens).astype(INT)
        kind, is_real = _KINDS[feature], examples != EMPTY
        counts, windows = is_real.astype(np.int64), examples[is_real]
        if kind == "tokens" or not self.separate:
            begins, ends = self._ends(windows)
            sizes = ends - begins
        else:
            counts[is_real], begins, sizes = self._documents(windows.tobytes())
        return fill_rows(self.column, counts, begins, sizes, self.length, kind)[:, parts[0]]

    def _ends(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions where windows begin and end in the column."""
        begins = windows * self.length
        return begins, np.minimum(begins + self.length, self.column.size)

    @cached_property
    def _documents(self) -> Callable[[bytes], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Returns `Column.parts` of int64 windows; segmentation and position share the result."""
        return lru_cache(8)(
            lambda windows: self.column.parts(*self._ends(np.frombuffer(windows, np.int64)))
        )

    def count_bytes(self, examples: np.ndarray) -> float:
        """Returns the UTF-8 length of the text of windows.

        If the tokenizer changes texts, the result is an estimate, scaled so that the total over all
        windows is exact.
        """
        tokens = self.read("targets", examples, (slice(None),))
        return int(self.vocabulary.byte_lengths[tokens].sum()) * self._bytes_of_a_byte

    @cached_property
    def _bytes_of_a_byte(self) -> float:
        """Bytes of text per byte of the tokens; 1 for a lossless vocabulary."""
        if self.vocabulary.is_lossless or self.text_bytes is None:
            return 1
        lengths = self.vocabulary.byte_lengths
        of_tokens = int(self.column.counts(len(lengths)) @ lengths.astype(np.int64))
        return self.text_bytes / of_tokens if of_tokens else 1
