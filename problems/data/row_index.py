"""Indexes: files that tell which examples each row of a batch has.

An index is computed in one pass over the examples, and every process maps it to memory. Without an
index, each process would recompute the rows of all examples at each start, and hold them in its own
memory. Indexes are in the subdirectory `.index/` of the data. The name of an index depends on the
data's digest, so other data never use it.
"""

import contextlib
import errno
import functools
import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
from absl import logging

from t2tp.atomic_file import write_text
from t2tp.problems.data import atomic_directory
from t2tp.problems.data.checked_file import mapped
from t2tp.problems.data.manifest import DamagedDataError, FileState, check_file
from t2tp.typed_files import file_inside, read_json

_RECORD = "index.json"

# Increment this when the computation or the format of indexes changes.
_VERSION = 2

# Errors of a file system that is read-only, is full, or has no locks (some network file systems).
_NOT_WRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
)


class IndexDirectory(NamedTuple):
    """The path of the directory of a problem's indexes, and the digest of the problem's data."""

    path: Path
    data: str


@dataclass(frozen=True)
class _IndexRecord:
    """The contents of `index.json`: the arrays' dtype, their files, and `IndexWriter.facts`."""

    version: int
    dtype: Literal["<u4", "<i8"]
    files: dict[str, FileState]
    facts: dict[str, int]


class IndexWriter:
    """A writer of an index's arrays, piece by piece.

    Attributes:
      facts: the index's other fields by name.
      files: the files of the arrays by name.
    """

    def __init__(self, path: Path, stack: contextlib.ExitStack, dtype: np.dtype):
        self.facts: dict[str, int] = {}
        self.files: dict[str, IO[bytes]] = {}
        self.dtype = dtype
        self._path = path
        self._stack = stack

    def add(self, name: str, values: np.ndarray) -> None:
        """Appends integers to the array of this name."""
        if name not in self.files:
            self.files[name] = self._stack.enter_context((self._path / name).open("wb"))
        self.files[name].write(np.asarray(values).astype(self.dtype).tobytes())


class Index(NamedTuple):
    """An open index: the fields that `IndexWriter` has set, and memory-mapped arrays by name."""

    facts: dict[str, int]
    arrays: dict[str, np.ndarray]


def open_index(
    directory: IndexDirectory | None,
    name: str,
    examples: int,
    make: Callable[[IndexWriter], None],
    arrays: Collection[str] = (),
) -> Index:
    """Opens an index; computes it if it does not exist.

    One process of a host computes the index while the others wait. If the directory cannot be
    written, each process computes the index in temporary files. If `directory` is None, the index
    is not stored. `name` must be unique within the data. `arrays` are the names of arrays that the
    index must have.
    """
    if directory is None:
        return _temporary(examples, make)
    digest = hashlib.sha256(repr((_VERSION, directory.data, name)).encode()).hexdigest()[:16]
    path = directory.path / f"{name}-{digest}"
    read = functools.partial(_read, path, examples, arrays)
    try:
        if (index := read()) is None:
            with atomic_directory.exclusive_build(path):
                if (index := read()) is None:
                    _keep(path, examples, make, read)
        return index or read() or _temporary(examples, make)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        logging.warning(
            f"the index of the examples cannot be kept in {directory.path} ({error.strerror}):"
            " every process makes it again at each start"
        )
        return _temporary(examples, make)


def _keep(
    path: Path, examples: int, make: Callable[[IndexWriter], None], read: Callable[[], Index | None]
) -> None:
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
        _give_name(own_path, path, read)
    finally:
        shutil.rmtree(own_path, ignore_errors=True)


def _give_name(own_path: Path, path: Path, read: Callable[[], Index | None]) -> None:
    """Renames an index, unless another host has already stored the same index."""
    try:
        own_path.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if read() is None:
            logging.warning("the index %s is damaged: making it again", path)
            shutil.rmtree(path)
            own_path.rename(path)


def _temporary(examples: int, make: Callable[[IndexWriter], None]) -> Index:
    """Computes an index in files that are deleted, but stay mapped while they are used."""
    with tempfile.TemporaryDirectory(prefix="t2tp-index-") as directory:
        return _mapped(Path(directory), _write(Path(directory), examples, make))


def _write(path: Path, examples: int, make: Callable[[IndexWriter], None]) -> _IndexRecord:
    dtype: Literal["<u4", "<i8"] = "<u4" if examples < 1 << 32 else "<i8"
    with contextlib.ExitStack() as stack:
        writer = IndexWriter(path, stack, np.dtype(dtype))
        make(writer)
    states = {name: FileState.from_file(path / name) for name in writer.files}
    record = _IndexRecord(_VERSION, dtype, states, writer.facts)
    write_text(path / _RECORD, json.dumps(asdict(record)) + "\n")
    return record


def check_indexes(directory: Path) -> None:
    """Checks every byte of the indexes in a directory.

    Raises:
      DamagedDataError: an index is damaged.
    """
    for path in directory.glob(f"*/{_RECORD}"):
        try:
            # Nobody opens the indexes of other versions.
            if read_json(path, {"version": int}).get("version") == _VERSION:
                _checked_record(path.parent)
        except ValueError as error:
            raise DamagedDataError(
                f"the index {path.parent} is damaged ({error}): training makes it again"
            ) from error


def _read(path: Path, examples: int, arrays: Collection[str]) -> Index | None:
    """Opens an index; None if it does not exist or is damaged."""
    try:
        index = _mapped(path, _checked_record(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    largest = {name: array.max(initial=0) for name, array in index.arrays.items()}
    is_right = all(n < examples + (name == "begins") for name, n in largest.items())
    return index if is_right and index.arrays.keys() >= {*arrays} else None


def _checked_record(path: Path) -> _IndexRecord:
    """Reads the record of an index, and checks the files; raises ValueError if one is damaged."""
    record = read_json(path / _RECORD, _IndexRecord)
    for name, state in record.files.items():
        check_file(file_inside(path, name), state, read_up_to=state.bytes)
    return record


def _mapped(path: Path, record: _IndexRecord) -> Index:
    dtype = np.dtype(record.dtype)
    return Index(record.facts, {name: mapped(path / name, dtype) for name in record.files})


def pieces(count: int, step: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of pieces of `step` items; the last piece may be shorter."""
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)
