"""Packed examples: the documents of a split end to end, cut into windows of one length.

No token is lost and none is padding, but for the end of the last window. Segments tell the model
where one document ends and the next begins, so that attention does not cross.
"""

from __future__ import annotations

import numpy as np

from t2tp.problems.stream import EMPTY, FeatureSpec
from t2tp.problems.token_files import TokenFile
from t2tp.problems.vocabulary import Vocabulary

_DIMENSIONS = ("batch", "length")

FEATURES = {
    "targets": FeatureSpec(_DIMENSIONS, np.dtype(np.int32)),
    "targets_segmentation": FeatureSpec(_DIMENSIONS, np.dtype(np.int32)),
    "targets_position": FeatureSpec(_DIMENSIONS, np.dtype(np.int32)),
}


class PackedWindows:
    """Example i is the tokens from i * length on.

    Its features, int32 [batch, length] and 0 where there is no token:

    targets: token ids.
    targets_segmentation: the number of the document in the window, from 1.
    targets_position: of the token in its document, from 0; a document that began in an earlier
        window is counted from the window's start, so it is always less than `length`.
    """

    features = FEATURES

    def __init__(self, file: TokenFile, length: int, vocabulary: Vocabulary):
        self._file = file
        self._length = length
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return -(-len(self._file.tokens) // self._length)

    def shape(self, feature: str) -> tuple[int, ...]:
        """Returns (length,)."""
        return (self._length,)

    def read(self, feature: str, examples: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads columns of some windows; see `ExampleSource.read`."""
        window = examples[:, None] * self._length  # [rows, 1]
        place = window + np.arange(self._length)[parts[0]]  # [rows, columns], in the token file
        real = (examples[:, None] != EMPTY) & (place < len(self._file.tokens))
        if feature == "targets":
            values = self._file.tokens[np.where(real, place, 0)]
        else:
            document = self._document(place)
            if feature == "targets_segmentation":
                values = document - self._document(window) + 1
            else:
                begins = self._file.begins[np.maximum(document, 0)]
                values = place - np.maximum(begins, window)
        return np.where(real, values, 0).astype(np.int32)

    def count_bytes(self, examples: np.ndarray) -> int:
        """Returns the UTF-8 length of the text that some windows hold together."""
        tokens = self.read("targets", examples, (slice(None),))
        return int(self._vocabulary.byte_lengths[tokens].sum())

    def _document(self, place: np.ndarray) -> np.ndarray:
        """Returns the number of the document that each token lies in."""
        return np.searchsorted(self._file.begins, place, side="right") - 1
