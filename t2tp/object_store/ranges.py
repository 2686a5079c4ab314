"""`CachedRanges`: a private copy of a hole that keeps only the parts read recently."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from t2tp.object_store.mirror import cache_directory, hole_of

# Bytes of a chunk; chunks are fetched as a whole.
CHUNK_BYTES = 1 << 20
# Flags of fallocate: deallocate a range, and keep the size of the file.
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_LIBC = ctypes.CDLL(None)

# The chunks of all files of this process, the least recently read chunk first.
_chunks: OrderedDict[tuple[CachedRanges, int], None] = OrderedDict()
_lock = threading.RLock()


def _max_chunks() -> int:
    given = os.environ.get("T2TP_DATA_CACHE_GB", "4")
    with contextlib.suppress(ValueError, OverflowError):
        return int(float(given) * (1 << 30)) // CHUNK_BYTES
    raise ValueError(f"T2TP_DATA_CACHE_GB={given}: expected a number of gigabytes, such as 4")


class CachedRanges:
    """The content of a hole. Chunks are fetched when needed; above a limit, old ones are dropped.

    Attributes:
      path: a sparse file with the hole's size. The system deletes it when the process ends.
      lock: held while chunks are used, so that they are not dropped.
    """

    lock = _lock

    def __init__(self, path: Path) -> None:
        """Creates the file for a hole; fetches nothing.

        Raises:
          ValueError: T2TP_DATA_CACHE_GB is not a number.
        """
        hole = hole_of(path)
        assert hole is not None
        self._hole, self._size = hole, path.stat().st_size
        self._max_chunks = _max_chunks()
        cache_directory().mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=cache_directory())  # noqa: SIM115
        self._file.truncate(self._size)
        self.path = Path(f"/proc/self/fd/{self._file.fileno()}")

    def fetch(self, needed: Sequence[int]) -> list[int]:
        """Fetches the chunks in `needed` that are missing, and returns their numbers.

        The caller must hold `lock`.
        """
        missing = [chunk for chunk in needed if (self, chunk) not in _chunks]
        store, name = self._hole
        store.read_ranges(
            name,
            [(at * CHUNK_BYTES, min((at + 1) * CHUNK_BYTES, self._size)) for at in missing],
            lambda begin, content: os.pwrite(self._file.fileno(), content, begin),
        )
        for chunk in needed:
            _chunks[self, chunk] = None
            _chunks.move_to_end((self, chunk))
        while len(_chunks) > max(self._max_chunks, len(needed)):
            (owner, chunk), _ = _chunks.popitem(last=False)
            begin, size = ctypes.c_long(chunk * CHUNK_BYTES), ctypes.c_long(CHUNK_BYTES)
            _LIBC.fallocate(owner._file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, begin, size)
        return missing
