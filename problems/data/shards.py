"""The files of a shard: a part of a split, written by one process.

An example has a few *columns*, each a list of numbers: the tokens of a text, the pixels of an
image, the index of a class. A shard has for each column two files of little-endian integers,

    train-00002-of-00016.targets          the lists of all its examples, concatenated
    train-00002-of-00016.targets.begins   int64: begin of each list, and end of the last list

and two files for the whole shard,

    train-00002-of-00016.checks           checksums of blocks of the data, and its bad samples
    train-00002-of-00016.json             counts, and the checksums of the files

The JSON file is written last: a shard that has it is complete. `columns.py` reads the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated

import numpy as np

from t2tp.atomic_file import unfinished_path
from t2tp.hparam_limits import Limits
from t2tp.problems.data import manifest
from t2tp.typed_files import read_json

# Signed, because NumPy compares uint64 with int64 in floating point.
OFFSET = np.dtype("<i8")

# Max number of bad samples that a shard records by name; all are counted.
_NAMED = 10


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the dtype of stored token ids: uint16 if it holds all ids, or uint32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_name(split: str, shard: int, shards: int) -> str:
    """Returns the prefix of the names of a shard's files."""
    return f"{split}-{shard:05d}-of-{shards:05d}"


@dataclass(frozen=True)
class Checks:
    """The checksums of a shard, the contents of a file.

    Attributes:
      bad: the first unusable samples, and why they are unusable.
      block_bytes: number of bytes per checksum.
      crc32: file -> the CRC-32 of each of its blocks, in hexadecimal.
    """

    bad: list[str]
    block_bytes: Annotated[int, Limits(min=1, max=1 << 26)]
    crc32: dict[str, str]

    def __post_init__(self) -> None:
        """Raises ValueError if a checksum is not a number, or a number may be in two blocks."""
        if self.block_bytes % OFFSET.itemsize:
            raise ValueError(f"block_bytes is {self.block_bytes}, and must be a multiple of 8")
        for file in self.crc32:
            self.sums(file)

    def sums(self, file: str) -> np.ndarray:
        """Returns the checksums of a file's blocks: uint32 [blocks]."""
        return np.frombuffer(bytes.fromhex(self.crc32[file]), "<u4")


@dataclass(frozen=True)
class _ShardRecord:
    """The contents of the JSON file of a shard."""

    sizes: manifest.SplitSizes
    files: dict[str, manifest.FileState]

    def __post_init__(self) -> None:
        """Raises ValueError for a name of a file outside of the directory."""
        for name in self.files:
            if Path(name).name != name:
                raise ValueError(f"{name!r} is not the plain name of a file")


def finished(
    directory: Path, name: str
) -> tuple[manifest.SplitSizes, dict[str, manifest.FileState]] | None:
    """Returns the sizes and files of a complete, undamaged shard, or None."""
    record, checks = directory / f"{name}.json", directory / f"{name}{manifest.CHECKS_END}"
    try:
        shard = read_json(record, _ShardRecord)
        files = dict(shard.files)
        for file, state in shard.files.items():
            manifest.check_file(directory / file, state, read_up_to=state.bytes)
        read_checks(directory, name)
        files |= {path.name: manifest.FileState.from_file(path) for path in (checks, record)}
        return shard.sizes, files
    except (FileNotFoundError, ValueError):
        return None


def finished_names(directory: Path) -> set[str]:
    """Returns the names of the shards in a directory that appear complete."""
    return {path.stem for path in directory.glob("*-of-*.json")}


def read_checks(directory: Path, name: str) -> Checks:
    """Reads the checksums of a shard.

    Raises:
      DamagedDataError: the shard has no checksums, or they cannot be read.
    """
    path = directory / f"{name}{manifest.CHECKS_END}"
    try:
        return read_json(path, Checks, manifest.MAX_CHECKS_BYTES)
    except (FileNotFoundError, ValueError) as error:
        raise manifest.DamagedDataError(f"{path} cannot be read: {error}") from error


class ShardWriter:
    """Writes the examples of a shard, in order.

    If the context ends without an error, the shard is complete.
    """

    def __init__(
        self, directory: Path, name: str, dtypes: Mapping[str, np.dtype], block_bytes: int = 1 << 16
    ):
        """Creates the files.

        `block_bytes` is the number of bytes per checksum. To verify a block, a reader must read
        all of it, even if it needs only a part. With blocks of 64 KiB this costs little, because
        the operating system reads ahead by about this size anyway.
        """
        self._directory = directory
        self._name = name
        self._block_bytes = block_bytes
        self._columns = {
            column: _ColumnWriter(directory / f"{name}.{column}", column, dtype, block_bytes)
            for column, dtype in dtypes.items()
        }
        self._examples = 0
        self._bytes = 0
        self._skipped: Counter[str] = Counter()
        self._bad: list[str] = []

    def add(self, example: Mapping[str, np.ndarray], text_bytes: int = 0) -> None:
        """Writes an example: integers [any number] for each column.

        Raises:
          ValueError: the columns are wrong, or values do not fit their dtype; nothing is written.
        """
        if example.keys() != self._columns.keys():
            raise ValueError(
                f"the shard stores the columns {', '.join(self._columns)}, and the example has"
                f" {', '.join(example)}"
            )
        stored = {name: self._columns[name].stored(values) for name, values in example.items()}
        for name, values in stored.items():
            self._columns[name].add(values)
        self._examples += 1
        self._bytes += text_bytes

    def skip(self, reason: str) -> None:
        """Counts a skipped sample."""
        self._skipped[reason] += 1

    def skip_bad(self, which: str) -> None:
        """Counts an unusable sample, and records the first ten."""
        self.skip(manifest.BAD)
        if len(self._bad) < _NAMED:
            self._bad.append(which)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, failure: type[BaseException] | None, *others: object) -> None:
        if failure is not None:
            for column in self._columns.values():
                column.discard()
            return
        values = {name: column.size for name, column in self._columns.items()}
        sizes = manifest.SplitSizes(self._examples, values, self._bytes, dict(self._skipped))
        files: dict[str, manifest.FileState] = {}
        crc32: dict[str, str] = {}
        for column in self._columns.values():
            for file in column.files:
                files[file.path.name] = file.finish()
                crc32[file.path.name] = np.array(file.block_sums, "<u4").tobytes().hex()
        checks = Checks(self._bad, self._block_bytes, crc32)
        self._write_json(manifest.CHECKS_END, checks)
        self._write_json(".json", _ShardRecord(sizes, files))

    def _write_json(self, end: str, contents: Checks | _ShardRecord) -> None:
        file = _HashedFile(self._directory / f"{self._name}{end}", self._block_bytes)
        file.write((json.dumps(asdict(contents), indent=2) + "\n").encode())
        file.finish()


class _ColumnWriter:
    """The two files of a column."""

    def __init__(self, path: Path, column: str, dtype: np.dtype, block_bytes: int):
        self._column = column
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._values = _HashedFile(path, block_bytes)
        self._begins = _HashedFile(path.with_name(f"{path.name}.begins"), block_bytes)
        self._begins.write(np.zeros(1, OFFSET).tobytes())
        self.files = (self._values, self._begins)
        self.size = 0

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Casts values to the dtype of the file; raises ValueError if they do not fit."""
        stored = np.asarray(values).astype(self._dtype)
        if not np.array_equal(stored, values):
            raise ValueError(
                f"the column {self._column} has values from {np.min(values)} to {np.max(values)},"
                f" which cannot be stored as {self._dtype}"
            )
        return stored

    def add(self, stored: np.ndarray) -> None:
        self._values.write(stored.tobytes())
        self.size += len(stored)
        self._begins.write(np.array(self.size, OFFSET).tobytes())

    def discard(self) -> None:
        for file in self.files:
            file.discard()


class _HashedFile:
    """A file that gets its name `path` only when it is complete and synced to disk."""

    def __init__(self, path: Path, block_bytes: int):
        self.path = path
        self._block_bytes = block_bytes
        self.block_sums: list[int] = []
        self._partial = unfinished_path(path)
        self._file: IO[bytes] = self._partial.open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, contents: bytes) -> None:
        with self._named_errors():
            self._file.write(contents)
        self._digest.update(contents)
        rest = memoryview(contents)
        while rest:
            left = self._block_bytes - self._size % self._block_bytes
            piece, rest = rest[:left], rest[left:]
            if left == self._block_bytes:
                self.block_sums.append(0)
            self.block_sums[-1] = zlib.crc32(piece, self.block_sums[-1])
            self._size += len(piece)

    def finish(self) -> manifest.FileState:
        with self._named_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        self._partial.rename(self.path)
        return manifest.FileState(self._size, self._digest.hexdigest())

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Adds the path to OSErrors: Python's write errors do not name the file."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # Such as a full disk; the file is deleted anyway.
            self._file.close()
        self._partial.unlink(missing_ok=True)
