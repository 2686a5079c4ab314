"""Atomic writes: a file appears under its name only when it is complete."""

import contextlib
import hashlib
import os
import re
import stat
import time
from pathlib import Path

# `<name>.tmp-<process id>`: a file that is being written.
_UNFINISHED = re.compile(r".+\.tmp-\d+")
_MAX_NAME = 255  # Bytes of a file's name.


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes or replaces a file (UTF-8) atomically, even if the process is killed meanwhile.

    A symlink's target is replaced. The file's mode is kept. Devices and pipes are written to, not
    replaced.

    Raises:
      OSError: the file cannot be written; the error names it. An existing file is unchanged.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], contents: bytes) -> None:
    """Writes or replaces a file like `write_text`."""
    try:
        if is_written_into(path):
            with open(path, "ab") as file:
                file.write(contents)
        else:
            _replace(Path(os.path.realpath(path)), contents)
    except OSError as error:  # Python's error about a full disk does not name the file.
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_written_into(path: str | os.PathLike[str]) -> bool:
    """Whether `write_text` writes into a path (device, pipe, open file) instead of replacing it."""
    path = os.path.abspath(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            return True
    # A link such as /dev/stdout leads to an open file in /proc.
    while os.path.islink(path) and not path.startswith("/proc/"):
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    return path.startswith("/proc/")


def _replace(path: Path, contents: bytes) -> None:
    unfinished = unfinished_path(path)
    try:
        # Somebody may have put a link there that leads to another file.
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Waits until a file's content, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished_path(path: Path) -> Path:
    """Returns the temporary path of a file that is being written."""
    end, name = f".tmp-{os.getpid()}", path.name
    if len(os.fsencode(name + end)) > _MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(name + end)


def is_unfinished(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the temporary file of a running or killed process."""
    return _UNFINISHED.fullmatch(Path(path).name) is not None


def remove_unfinished(
    directory: str | os.PathLike[str], min_age_seconds: float = 0.0
) -> list[Path]:
    """Deletes the unfinished files of killed processes in a directory, and returns them.

    Files younger than `min_age_seconds` are kept, because another process may be writing them.
    Subdirectories are ignored.

    Raises:
      OSError: the directory cannot be listed, or a file cannot be deleted.
    """
    directory = Path(directory)
    removed = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        try:
            state = path.lstat()
        except FileNotFoundError:  # its writer has finished it, or deleted it
            continue
        is_ours = is_unfinished(path) and not stat.S_ISDIR(state.st_mode)
        if is_ours and time.time() - state.st_mtime >= min_age_seconds:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed
