"""Temporary directories that are deleted eventually, even if their process is killed."""

import contextlib
import fcntl
import glob
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# The process that uses the directory locks this file as long as it lives.
_LOCK = ".t2tp-scratch.lock"


@contextlib.contextmanager
def scratch_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Creates a directory `<parent>/<prefix>...` and deletes it at the end.

    First deletes directories with the same prefix that killed processes left behind. Nobody locks
    their lock files: the operating system releases a lock when its process ends.

    Raises:
      OSError: the directory cannot be created.
    """
    for path in parent.glob(f"{glob.escape(prefix)}*"):
        # A directory in use raises an OSError, and so does one that is no scratch directory.
        with contextlib.suppress(OSError), (path / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with (directory / _LOCK).open("w") as lock:
            # In a file system without locks, other processes cannot lock the file either, and
            # delete nothing.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
