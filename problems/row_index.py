"""Row plans on disk: made once, by one pass over the examples, mapped by every process after that.

What a stream needs to know of each example would otherwise be found anew at each start of each
process, and kept in its memory. An index lies in `.index/` in the directory of the data, which is
replaced with the data; its name has the digest of the data that it was made from.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from t2tp.problems import publish
from t2tp.problems.checked_file import mapped
from t2tp.whole_file import write_text

_RECORD = "index.json"

# Changed when an index is made in another way, so that an old one is not taken for a new one.
_VERSION = 1

# A file system that cannot be written to, has no room, or, as some over a network, no locks.
_NOT_WRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
)


class IndexDirectory(NamedTuple):
    """Where the indexes of a split are.

    Attributes:
        path: the directory.
        data: what tells the data that they are of from others.
    """

    path: Path
    data: str


class IndexWriter:
    """Writes the arrays of an index, piece by piece.

    Attributes:
        facts: what else is to be known of it: names to JSON values.
    """

    def __init__(self, path: Path, stack: contextlib.ExitStack, dtype: np.dtype):
        self.facts: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.dtype = dtype
        self._path = path
        self._stack = stack
        self._files: dict[str, Any] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        """Adds integers to the array of this name."""
        if name not in self._files:
            self._files[name] = self._stack.enter_context((self._path / name).open("wb"))
            self.sizes[name] = 0
        self._files[name].write(np.asarray(values).astype(self.dtype).tobytes())
        self.sizes[name] += len(values)


class Index(NamedTuple):
    """An index that is open.

    Attributes:
        facts: as its writer left them.
        arrays: integers by name, mapped.
    """

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def open_index(
    directory: IndexDirectory | None,
    name: str,
    examples: int,
    make: Callable[[IndexWriter], None],
) -> Index:
    """Opens an index, which is made if it is not there.

    Of several processes one makes it and the others wait. Where the directory cannot be written
    each process makes it for itself, in a temporary file.

    Args:
        directory: where it is kept; None: nowhere.
        name: what the index is of, which with the data decides what is in it.
        examples: how many the split has.
        make: writes it.
    """
    if directory is None:
        return _temporary(examples, make)
    digest = hashlib.sha256(repr((_VERSION, directory.data, name)).encode()).hexdigest()[:16]
    path = directory.path / f"{name}-{digest}"
    try:
        if not _is_complete(path):
            with publish.only_one_maker(path):
                if not _is_complete(path):
                    _keep(path, name, examples, make)
        return _read(path)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        logging.warning(
            "the index of the examples cannot be kept in %s (%s): every process makes it again at "
            "each start",
            directory.path,
            error.strerror,
        )
        return _temporary(examples, make)


def _keep(path: Path, name: str, examples: int, make: Callable[[IndexWriter], None]) -> None:
    """Makes an index in its place, under `publish.only_one_maker`."""
    logging.info("making the index %s", path)
    with publish.new_folder(path, name) as partial:
        try:
            _write(partial, examples, make)
        except OSError:
            publish.clear(partial)  # a full disk should not stay full
            raise


def _temporary(examples: int, make: Callable[[IndexWriter], None]) -> Index:
    """Makes an index whose files are deleted, and stay mapped as long as they are used."""
    with tempfile.TemporaryDirectory(prefix="t2tp-index-") as folder:
        _write(Path(folder), examples, make)
        return _read(Path(folder))


def _write(path: Path, examples: int, make: Callable[[IndexWriter], None]) -> None:
    dtype = np.dtype("<u4" if examples < 1 << 32 else "<i8")
    with contextlib.ExitStack() as stack:
        writer = IndexWriter(path, stack, dtype)
        make(writer)
    record = {"dtype": dtype.str, "sizes": writer.sizes, "facts": writer.facts}
    write_text(path / _RECORD, json.dumps(record) + "\n")


def _is_complete(path: Path) -> bool:
    """Whether an index is there with all its bytes."""
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
    """Gives the begin and end of each piece of `step` of so many things; the last is shorter."""
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)
