"""Tokens of a split in files that are mapped, not loaded: any token of any document in O(1).

A split is two files of little-endian integers:

    train.tokens     uint16 (uint32 if the vocabulary is larger than 65,536 pieces): the documents
                     end to end, each with its end-of-document token
    train.documents  int64: where each document begins in it, and at last the number of tokens
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

# Signed, as NumPy compares uint64 with int64 by way of floating point.
_OFFSET = np.dtype("<i8")

# Counting goes through a mapped file in steps of so many tokens.
_COUNT_STEP = 1 << 22


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the dtype of the tokens in the files."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class TokenWriter:
    """Writes the documents of a split, one after the other.

    Use it as a context manager: the files are complete when it is left.
    """

    def __init__(self, folder: Path, split: str, vocab_size: int):
        self._dtype = token_dtype(vocab_size)
        self._offsets_path = folder / f"{split}.documents"
        self._tokens_file = (folder / f"{split}.tokens").open("wb")
        self._offsets = [0]

    @property
    def documents(self) -> int:
        """How many were written."""
        return len(self._offsets) - 1

    @property
    def tokens(self) -> int:
        """How many tokens they have together."""
        return self._offsets[-1]

    def write(self, document: list[int]) -> None:
        """Writes the token ids of one document, its end included."""
        self._tokens_file.write(np.array(document, self._dtype).tobytes())
        self._offsets.append(self.tokens + len(document))

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        self._tokens_file.close()
        self._offsets_path.write_bytes(np.array(self._offsets, _OFFSET).tobytes())


class TokenFile:
    """The tokens of a split.

    Attributes:
        tokens: unsigned integers [tokens], mapped.
        begins: int64 [documents + 1], mapped: where each document begins, and the end.
    """

    def __init__(self, folder: Path, split: str, vocab_size: int):
        self.tokens = np.memmap(folder / f"{split}.tokens", token_dtype(vocab_size), "r")
        self.begins = np.memmap(folder / f"{split}.documents", _OFFSET, "r")

    def counts(self, vocab_size: int) -> np.ndarray:
        """Returns how often each token of the vocabulary occurs: int64 [vocab]."""
        counts = np.zeros(vocab_size, np.int64)
        for begin in range(0, len(self.tokens), _COUNT_STEP):
            part = self.tokens[begin : begin + _COUNT_STEP]
            counts += np.bincount(part, minlength=vocab_size)
        return counts
