"""Names of checkpoint directories.

A directory with a final name, `step-00000300` without an ending, is complete.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from t2tp.atomic_file import sync
from t2tp.checkpoint.errors import as_unusable

_STEP_DIRECTORY = re.compile(r"step-(\d{8,})")
# Endings of directories that are being written or deleted.
_TEMPORARY, _DISCARDED = ".tmp", ".discarded"
# Ending of a damaged directory, kept for inspection.
_DAMAGED = ".damaged"
# Characters of TensorFlow's path patterns.
_PATTERN = re.compile(r"[*?\[\]\\]")


def step_directory(directory: Path, step: int) -> Path:
    """Returns the path of a step's finished checkpoint."""
    return directory / f"step-{step:08d}"


def temporary_directory(directory: Path, step: int) -> Path:
    """Returns the path of a step's checkpoint while it is being written."""
    step_dir = step_directory(directory, step)
    return step_dir.with_name(step_dir.name + _TEMPORARY)


def step_directories(directory: Path) -> dict[int, Path]:
    """Returns step -> directory with a checkpoint's name, ascending; contents are not checked."""
    return dict(sorted(_directories(directory, "")))


def temporary_directories(directory: Path) -> dict[int, Path]:
    """Returns step -> temporary directory, of a save that is running or has crashed."""
    return dict(sorted(_directories(directory, _TEMPORARY)))


def discarded_directories(directory: Path) -> list[Path]:
    """Returns the directories whose deletion was interrupted."""
    return [path for _, path in sorted(_directories(directory, _DISCARDED))]


def _directories(directory: Path, ending: str) -> Iterator[tuple[int, Path]]:
    with as_unusable(f"The directory of checkpoints {directory}"):
        paths = list(directory.iterdir()) if directory.is_dir() else []
    for path in paths:
        match = _STEP_DIRECTORY.fullmatch(path.name.removesuffix(ending))
        # Exact names only: "step-000000300" would be a second directory of step 300.
        if match and path.name == step_directory(directory, int(match[1])).name + ending:
            yield int(match[1]), path


def is_pattern(path: Path) -> bool:
    """Whether TensorFlow reads a path as a pattern and may not find the path itself."""
    return _PATTERN.search(str(path)) is not None


@contextlib.contextmanager
def tensorflow_path(directory: Path) -> Iterator[bytes]:
    """Yields a path by which TensorFlow's operations find a directory.

    TensorFlow lists the files that match a path as a pattern, then opens the path itself. A path
    with characters such as `*` fails at the first step, and an escaped path at the second. So the
    directory is opened, and the yielded path names its file descriptor.
    """
    if not is_pattern(directory):
        yield os.fsencode(directory)  # Bytes, as the path need not be UTF-8.
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}".encode()
    finally:
        os.close(descriptor)


def discard(step_dir: Path) -> None:
    """Deletes a checkpoint.

    It is renamed first, so that a directory with a final name is complete even after a crash.
    """
    rubbish = step_dir.with_name(step_dir.name + _DISCARDED)
    remove(rubbish)
    step_dir.rename(rubbish)
    sync(step_dir.parent)
    remove(rubbish)


def remove(path: Path) -> None:
    """Deletes a directory, a file or a link; a missing path is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def set_aside(step_dir: Path) -> Path:
    """Renames a path with a checkpoint's name that is not a checkpoint; returns the new path."""
    aside = step_dir.with_name(step_dir.name + _DAMAGED)
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = step_dir.with_name(f"{step_dir.name}{_DAMAGED}-{number}")
    step_dir.rename(aside)
    sync(step_dir.parent)
    return aside


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and waits until its content is on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
