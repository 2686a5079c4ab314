"""The files that examples are stored in: a part ("shard") of a split is written at a time.

An example is a few *columns*, each a list of numbers: the tokens of a text, the pixels of an image,
the number of a class. A shard has for each column two files of little-endian integers,

    train-00002-of-00016.targets          the lists of all its examples end to end
    train-00002-of-00016.targets.begins   int64: where each begins there, and at last the end

and train-00002-of-00016.json, which is written last: what was counted, and the checksums. A shard
with that file is complete. `columns.py` reads the files back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from t2tp.problems.manifest import DamagedDataError, FileState, SplitSizes, check_file

# Signed, as NumPy compares uint64 with int64 by way of floating point.
OFFSET = np.dtype("<i8")


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the dtype that token ids are stored in."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_name(split: str, shard: int, shards: int) -> str:
    """Returns the name that a shard's files begin with."""
    return f"{split}-{shard:05d}-of-{shards:05d}"


def finished(folder: Path, name: str) -> tuple[SplitSizes, dict[str, FileState]] | None:
    """Returns the sizes and files of a shard that is complete and undamaged, or None."""
    record = folder / f"{name}.json"
    try:
        fields = json.loads(record.read_text(encoding="utf-8"))
        files = {file: FileState(**state) for file, state in fields["files"].items()}
        for file, state in files.items():
            check_file(folder / file, state, read_up_to=state.bytes)
        files[record.name] = FileState.of(record)
        return SplitSizes(**fields["sizes"]), files
    except (FileNotFoundError, DamagedDataError, KeyError, TypeError, ValueError):
        return None


class ShardWriter:
    """Writes the examples of a shard, one after the other.

    Use it as a context manager: when it is left without an error the shard is complete.
    """

    def __init__(self, folder: Path, name: str, dtypes: Mapping[str, np.dtype]):
        self._folder = folder
        self._name = name
        self._columns = {
            column: _ColumnWriter(folder, f"{name}.{column}", dtype)
            for column, dtype in dtypes.items()
        }
        self._examples = 0
        self._bytes = 0
        self._skipped: Counter[str] = Counter()

    def add(self, example: Mapping[str, np.ndarray], text_bytes: int = 0) -> None:
        """Writes an example: integers [any number] for each column."""
        for column, values in example.items():
            self._columns[column].add(values)
        self._examples += 1
        self._bytes += text_bytes

    def skip(self, reason: str) -> None:
        """Counts a sample that is left out."""
        self._skipped[reason] += 1

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, failure: type[BaseException] | None, *others: object) -> None:
        if failure is not None:
            for column in self._columns.values():
                column.discard()
            return
        values = {name: column.size for name, column in self._columns.items()}
        sizes = SplitSizes(self._examples, values, self._bytes, dict(self._skipped))
        files: dict[str, FileState] = {}
        for column in self._columns.values():
            files |= column.finish()
        record = {"sizes": asdict(sizes), "files": {n: asdict(s) for n, s in files.items()}}
        file = _HashedFile(self._folder / f"{self._name}.json")
        file.write((json.dumps(record, indent=2) + "\n").encode())
        file.finish()


class _ColumnWriter:
    """The two files of a column."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype):
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._values = _HashedFile(folder / name)
        self._begins = _HashedFile(folder / f"{name}.begins")
        self._begins.write(np.zeros(1, OFFSET).tobytes())
        self.size = 0

    def add(self, values: np.ndarray) -> None:
        stored = np.asarray(values).astype(self._dtype)
        if not np.array_equal(stored, values):
            raise ValueError(f"{values} cannot be stored as {self._dtype}")
        self._values.write(stored.tobytes())
        self.size += len(stored)
        self._begins.write(np.array(self.size, OFFSET).tobytes())

    def finish(self) -> dict[str, FileState]:
        return {file.path.name: file.finish() for file in (self._values, self._begins)}

    def discard(self) -> None:
        self._values.discard()
        self._begins.discard()


class _HashedFile:
    """A file that has its name only when it is complete and on the disk."""

    def __init__(self, path: Path):
        self.path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._file: IO[bytes] = self._partial.open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, contents: bytes) -> None:
        with self._named_errors():
            self._file.write(contents)
        self._digest.update(contents)
        self._size += len(contents)

    def finish(self) -> FileState:
        with self._named_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        self._partial.rename(self.path)
        return FileState(self._size, self._digest.hexdigest())

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Python does not say which file could not be written."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: what is in the buffer is not wanted
            self._file.close()
        self._partial.unlink(missing_ok=True)
