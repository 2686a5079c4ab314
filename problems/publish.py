"""Makes a folder that is there whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import logging


@contextmanager
def only_one_maker(folder: Path) -> Iterator[None]:
    """Waits until no other process makes this folder, and keeps others waiting meanwhile.

    The system lifts the lock of a process that dies.

    Raises:
        OSError: (PermissionError, ...) the parent folder cannot be made or written; names it.
    """
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        lock = (parent / f".{folder.name}.lock").open("w")
    except OSError as error:
        raise OSError(error.errno, f"cannot write data: {error.strerror}", str(parent)) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.info("another process is making %s: waiting for it", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Gives a temporary folder beside `folder`, which takes its place if the block succeeds.

    What was there before is replaced then; if the block fails it stays, and the temporary folder
    is removed. Use it under `only_one_maker`.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    for left_by_killed in (partial, replaced):
        shutil.rmtree(left_by_killed, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        _flush(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    _flush_one(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def scratch_folder(folder: Path, tmp_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Gives `tmp_dir`, which stays, or else a folder inside `folder` which is removed."""
    if tmp_dir is not None:
        Path(tmp_dir).mkdir(parents=True, exist_ok=True)
        yield Path(tmp_dir)
        return
    scratch = folder / "scratch"
    scratch.mkdir()
    yield scratch
    shutil.rmtree(scratch)


def _flush(folder: Path) -> None:
    """Waits until the folder and everything in it is on the disk."""
    for path in folder.rglob("*"):
        _flush_one(path)
    _flush_one(folder)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
