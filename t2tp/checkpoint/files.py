"""Files and folders that survive a crash: what is there under its final name is complete."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from t2tp.checkpoint.errors import as_unusable

_STEP_FOLDER = re.compile(r"step-(\d{8,})")
# A folder that is being written, and one that is being deleted. Neither name is a checkpoint's.
_TEMPORARY, _DISCARDED = ".tmp", ".discarded"
# One that could not be read, kept for whoever wants to know why.
_DAMAGED = ".damaged"
_BLOCK = 1 << 20


def step_folder(directory: Path, step: int) -> Path:
    """Where the finished checkpoint of a step is."""
    return directory / f"step-{step:08d}"


def temporary_folder(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step is while it is being written."""
    folder = step_folder(directory, step)
    return folder.with_name(folder.name + _TEMPORARY)


def step_folders(directory: Path) -> dict[int, Path]:
    """The folders with a checkpoint's name (finished or not looked at), by step, ascending."""
    return dict(sorted(_folders(directory, "")))


def temporary_folders(directory: Path) -> dict[int, Path]:
    """The folders of checkpoints that are being written, or were when something died."""
    return dict(sorted(_folders(directory, _TEMPORARY)))


def discarded_folders(directory: Path) -> list[Path]:
    """The folders whose deletion was interrupted."""
    return [path for _, path in sorted(_folders(directory, _DISCARDED))]


def _folders(directory: Path, ending: str) -> Iterator[tuple[int, Path]]:
    with as_unusable(f"The directory of checkpoints {directory}"):
        paths = list(directory.iterdir()) if directory.is_dir() else []
    for path in paths:
        match = _STEP_FOLDER.fullmatch(path.name.removesuffix(ending))
        # Our own names only: step-000000300 would be a second folder of step 300.
        if match and path.name == step_folder(directory, int(match[1])).name + ending:
            yield int(match[1]), path


def discard(folder: Path) -> None:
    """Deletes a checkpoint's folder, which stops looking like one before its first file goes."""
    rubbish = folder.with_name(folder.name + _DISCARDED)
    remove(rubbish)
    folder.rename(rubbish)
    sync(folder.parent)
    remove(rubbish)


def remove(path: Path) -> None:
    """Deletes whatever is there: a folder with all in it, a file, a link, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def set_aside(folder: Path) -> Path:
    """Gives a damaged checkpoint's folder, or what has its name, one that is no checkpoint's.

    Returns:
      the new path.
    """
    aside = folder.with_name(folder.name + _DAMAGED)
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = folder.with_name(f"{folder.name}{_DAMAGED}-{number}")
    folder.rename(aside)
    sync(folder.parent)
    return aside


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and waits until its content is on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
