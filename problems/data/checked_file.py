"""A memory-mapped file of numbers whose blocks are verified on first read."""

import contextlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from t2tp.object_store import ranges
from t2tp.object_store.mirror import hole_of
from t2tp.problems.data.manifest import DamagedDataError


class CheckedFile:
    """The numbers in a file, as an array that can be indexed.

    A process verifies each block only once.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype,
        crc32: np.ndarray | None = None,
        block_bytes: int = 1,
        below: int | None = None,
        ascending: bool = False,
    ):
        """Maps the file.

        Args:
          path: the file.
          dtype: dtype of the numbers.
          crc32: the CRC-32 of each block, uint32 [blocks]; None: verify nothing. The last block may
            be shorter than `block_bytes`.
          block_bytes: number of bytes of a block, which has whole numbers.
          below: the numbers must be at least 0 and below this bound, such as a vocabulary's size.
          ascending: whether each number must be at least the number before it.
        """
        self._path = path
        self._below, self._ascending = below, ascending
        self._cached = ranges.CachedRanges(path) if hole_of(path) else None
        # Held during a read, so that other threads do not drop the chunks being read.
        self._lock = self._cached.lock if self._cached else contextlib.nullcontext()
        self._content = self._cached.path if self._cached else path
        self._array = mapped(self._content, dtype)
        self._block_bytes = block_bytes
        self._crc32 = np.empty(0, np.uint32) if crc32 is None else crc32
        self._is_unchecked = np.ones(len(self._crc32), bool)
        self._some_unchecked = bool(len(self._crc32))
        if crc32 is not None and len(crc32) != -(-self._array.nbytes // block_bytes):
            raise DamagedDataError(
                f"{path} has {self._array.nbytes} bytes, and checksums for {len(crc32)} blocks of "
                f"{block_bytes}"
            )

    def __str__(self) -> str:
        """Returns the path."""
        return str(self._path)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Returns numbers by a slice or an array of indices."""
        if self._cached is None:
            return self._checked(index)
        with self._lock:
            self._fetch(index)
            return self._checked(index).copy()

    def _checked(self, index: Any) -> np.ndarray:
        if self._some_unchecked:
            blocks = self._touched(index, self._block_bytes)
            self._check(self._unchecked(blocks), self._array.view(np.uint8).data)
        return self._array[index]

    def _fetch(self, index: Any) -> None:
        """Fetches the chunks that an index touches, if the file is in an object store."""
        if self._cached is None:
            return
        chunk_bytes = ranges.CHUNK_BYTES
        chunks = np.unique(self._touched(index, chunk_bytes))
        for chunk in self._cached.fetch(chunks.tolist()):
            begin = chunk * chunk_bytes // self._block_bytes
            self._is_unchecked[begin : begin + chunk_bytes // self._block_bytes] = True
            self._some_unchecked = bool(len(self._crc32))

    def searchsorted(self, values: np.ndarray) -> np.ndarray:
        """Returns, for each value, how many numbers of a sorted file are at most this value.

        The search itself verifies nothing: it touches about twenty pages of a large file, and
        verifying their blocks would read megabytes. Verifying the two numbers next to each result
        is enough to verify the result.
        """
        with self._lock:
            self._fetch(slice(None))
            indices = self._array.searchsorted(values, side="right")
        if self._some_unchecked:
            last = len(self) - 1
            below, above = self[np.maximum(indices - 1, 0)], self[np.minimum(indices, last)]
            is_right = ((indices == 0) | (below <= values)) & ((indices > last) | (above > values))
            if not is_right.all():  # a damaged block misled the search: find it
                self[:]
        return indices

    def read(self, begin: int, end: int) -> np.ndarray:
        """Reads a range of numbers from the file, because mapped pages would count as memory."""
        blocks = self._touched(slice(begin, end), self._block_bytes)
        first, last = int(blocks[0]), int(blocks[-1]) + 1
        with self._lock, self._content.open("rb") as file:
            self._fetch(slice(begin, end))
            file.seek(first * self._block_bytes)
            contents = file.read((last - first) * self._block_bytes)
        if self._some_unchecked:
            self._check(self._unchecked(blocks), contents, first)
        size = self._array.itemsize
        skipped = begin * size - first * self._block_bytes
        return np.frombuffer(contents, self._array.dtype, end - begin, skipped)

    def _touched(self, index: Any, block_bytes: int) -> np.ndarray:
        """Returns the blocks that an index touches, in any order, possibly several times."""
        size = self._array.itemsize
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            return np.arange(begin * size // block_bytes, -(-end * size // block_bytes))
        return np.asarray(index) * size // block_bytes

    def _unchecked(self, blocks: np.ndarray) -> np.ndarray:
        """Returns the unverified blocks, sorted and without repetitions."""
        unchecked = blocks[self._is_unchecked[blocks]]
        return np.unique(unchecked) if len(unchecked) else unchecked

    def _check(self, blocks: np.ndarray, contents: bytes | memoryview, first: int = 0) -> None:
        """Verifies blocks; `contents` are the file's bytes from the block `first` on."""
        for block in blocks.tolist():
            begin = block * self._block_bytes
            offset = begin - first * self._block_bytes
            piece = memoryview(contents)[offset : offset + self._block_bytes]
            if zlib.crc32(piece) != self._crc32[block]:
                raise DamagedDataError(
                    f"{self._path} is damaged: its bytes {begin:,} to {begin + len(piece) - 1:,} "
                    "have changed; t2tp_datagen --check looks at all files, "
                    "and --overwrite makes the data again"
                )
            self._check_numbers(begin // self._array.itemsize, len(piece) // self._array.itemsize)
            self._is_unchecked[block] = False
        self._some_unchecked = bool(self._is_unchecked.any())

    def _check_numbers(self, begin: int, count: int) -> None:
        numbers = self._array[begin : begin + count]
        if self._ascending and (np.diff(self._array[max(0, begin - 1) : begin + count]) < 0).any():
            raise DamagedDataError(
                f"{self._path} has offsets that do not grow: make the data again"
            )
        if self._below is None or not count:
            return
        for number in (int(numbers.min()), int(numbers.max())):
            if not 0 <= number < self._below:
                raise DamagedDataError(
                    f"{self._path} has the number {number:,}, and its numbers must be below"
                    f" {self._below:,}: make the data again"
                )


def mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """Maps a file as an array, read on access.

    Raises:
      DamagedDataError: the file ends within a number.
    """
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DamagedDataError(f"{path} has {size} bytes, not numbers of {dtype.itemsize} bytes")
    if not size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))  # Still mapped; np.memmap slices slowly.
