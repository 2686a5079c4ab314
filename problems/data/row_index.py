"""Indexes: files that tell which examples each row of a batch has.

An index is computed in one pass over the examples, and every process maps it to memory. Without an
index, each process would recompute the rows of all examples at each start, and hold them in its own
memory. Indexes are in the subdirectory `.index/` of the data. The name of an index depends on the
data's digest, so other data never use it.
"""

import contextlib
import errno
import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from t2tp.atomic_file import write_text
from t2tp.problems.data import atomic_directory
from t2tp.problems.data.checked_file import mapped

_RECORD = "index.json"

# Increment this when the computation of indexes changes.
_VERSION = 1

# Errors of a file system that is read-only, is full, or has no locks (some network file systems).
_NOT_WRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
)


class IndexDirectory(NamedTuple):
    """The path of the directory of a problem's indexes, and the digest of the problem's data."""

    path: Path
    data: str


class IndexWriter:
    """A writer of an index's arrays, piece by piece.

    Attributes:
      facts: maps the names of the index's other fields to JSON values.
    """

    def __init__(self, path: Path, stack: contextlib.ExitStack, dtype: np.dtype):
        self.facts: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.dtype = dtype
        self._path = path
        self._stack = stack
        self._files: dict[str, Any] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        """Appends integers to the array of this name."""
        if name not in self._files:
            self._files[name] = self._stack.enter_context((self._path / name).open("wb"))
            self.sizes[name] = 0
        self._files[name].write(np.asarray(values).astype(self.dtype).tobytes())
        self.sizes[name] += len(values)


class Index(NamedTuple):
    """An open index: the fields that `IndexWriter` has set, and memory-mapped arrays by name."""

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def open_index(
    directory: IndexDirectory | None, name: str, examples: int, make: Callable[[IndexWriter], None]
) -> Index:
    """Opens an index; computes it if it does not exist.

    One process of a host computes the index while the others wait. If the directory cannot be
    written, each process computes the index in temporary files. If `directory` is None, the index
    is not stored. `name` must be unique within the data.
    """
    if directory is None:
        return _temporary(examples, make)
    digest = hashlib.sha256(repr((_VERSION, directory.data, name)).encode()).hexdigest()[:16]
    path = directory.path / f"{name}-{digest}"
    try:
        if not _is_complete(path):
            with atomic_directory.exclusive_build(path):
                if not _is_complete(path):
                    _keep(path, examples, make)
        return _read(path)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        logging.warning(
            f"the index of the examples cannot be kept in {directory.path} ({error.strerror}):"
            " every process makes it again at each start"
        )
        return _temporary(examples, make)


def _keep(path: Path, examples: int, make: Callable[[IndexWriter], None]) -> None:
    """Computes an index and stores it under its name, inside `exclusive_build`.

    Hosts that share a file system may not see each other's locks. So each host writes a separate
    directory, and the first complete directory is kept. A complete directory is never replaced,
    because other processes may have mapped its files: on a network file system, a deleted file can
    no longer be read through a mapping.
    """
    logging.info("making the index %s", path)
    own_path = path.with_name(f".{path.name}.{platform.node()}")
    shutil.rmtree(own_path, ignore_errors=True)  # left by a process that was killed
    own_path.mkdir()
    try:
        _write(own_path, examples, make)
        atomic_directory.flush(own_path)
        _give_name(own_path, path)
    finally:
        shutil.rmtree(own_path, ignore_errors=True)


def _give_name(own_path: Path, path: Path) -> None:
    """Renames an index, unless another host has already stored the same index."""
    try:
        own_path.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _is_complete(path):  # damaged
            shutil.rmtree(path)
            own_path.rename(path)


def _temporary(examples: int, make: Callable[[IndexWriter], None]) -> Index:
    """Computes an index in files that are deleted, but stay mapped while they are used."""
    with tempfile.TemporaryDirectory(prefix="t2tp-index-") as directory:
        _write(Path(directory), examples, make)
        return _read(Path(directory))


def _write(path: Path, examples: int, make: Callable[[IndexWriter], None]) -> None:
    dtype = np.dtype("<u4" if examples < 1 << 32 else "<i8")
    with contextlib.ExitStack() as stack:
        writer = IndexWriter(path, stack, dtype)
        make(writer)
    record = {"dtype": dtype.str, "sizes": writer.sizes, "facts": writer.facts}
    write_text(path / _RECORD, json.dumps(record) + "\n")


def _is_complete(path: Path) -> bool:
    """Whether an index exists with all its bytes."""
    try:
        record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
        itemsize = np.dtype(record["dtype"]).itemsize
        return all(
            (path / name).stat().st_size == size * itemsize
            for name, size in record["sizes"].items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return False


def _read(path: Path) -> Index:
    record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
    arrays = {name: mapped(path / name, np.dtype(record["dtype"])) for name in record["sizes"]}
    return Index(record["facts"], arrays)


def pieces(count: int, step: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of pieces of `step` items; the last piece may be shorter."""
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)
