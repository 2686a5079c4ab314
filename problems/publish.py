"""Makes a folder that is there whole or not at all, in several attempts if need be."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import logging

from t2tp.whole_file import remove_unfinished, write_text

# What an unfinished folder has besides: it says what is being made.
PLAN_FILE = ".plan"

# Where downloads are, unless the user keeps them elsewhere.
_SCRATCH = "scratch"


@contextmanager
def only_one_maker(folder: Path) -> Iterator[None]:
    """Waits until no other process makes this folder, and keeps others waiting meanwhile.

    If a maker was killed while it put a new folder in the old one's place that is finished first.
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
        _finish(folder)
        yield


@contextmanager
def new_folder(
    folder: Path, plan: str, is_worth_keeping: Callable[[Path], bool] = lambda partial: False
) -> Iterator[Path]:
    """Gives a temporary folder beside `folder`, which takes its place if the block succeeds.

    What was there before is replaced then. If the process is killed or interrupted, or the disk
    is full, the temporary folder stays, and the next maker of the same plan finds it as it was
    left; every file in it must therefore be whole or have the name of an unfinished one. After any
    other failure it stays if it is worth it. Use it under `only_one_maker`.

    Args:
        folder: what is made.
        plan: what will be in it, in words. What an attempt with another plan left is removed.
        is_worth_keeping: whether a temporary folder has something to go on with.
    """
    partial, replaced = _neighbours(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    _begin(partial, plan)
    try:
        yield partial
        (partial / PLAN_FILE).unlink()
        _flush(partial)
    except (OSError, KeyboardInterrupt):
        raise
    except BaseException:
        if not is_worth_keeping(partial):
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    _flush_one(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _neighbours(folder: Path) -> tuple[Path, Path]:
    """Returns where a folder is made, and where what was there before is put aside."""
    return folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.replaced")


def _finish(folder: Path) -> None:
    """Gives the folder its name if a maker was killed between putting aside and renaming."""
    partial, replaced = _neighbours(folder)
    if folder.exists() or not replaced.exists():
        return
    # What has no plan any more is complete: the old folder is put aside only after that.
    is_complete = partial.is_dir() and not (partial / PLAN_FILE).exists()
    (partial if is_complete else replaced).rename(folder)
    _flush_one(folder.parent)


def _begin(partial: Path, plan: str) -> None:
    """Makes the temporary folder, or keeps that of an earlier attempt with the same plan."""
    written = partial / PLAN_FILE
    if written.is_file() and written.read_text(encoding="utf-8") == plan:
        logging.info("going on with what an interrupted run left in %s", partial)
        for place, folders, _ in os.walk(partial):
            remove_unfinished(place)
            if Path(place) == partial and _SCRATCH in folders:
                folders.remove(_SCRATCH)
        return
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    write_text(written, plan)


def clear(partial: Path) -> None:
    """Removes all from the temporary folder but its plan and what is in `scratch_folder`."""
    for path in partial.iterdir():
        if path.name in (PLAN_FILE, _SCRATCH):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def scratch_folder(folder: Path, tmp_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Gives `tmp_dir`, which stays, or a folder inside `folder` which is removed at the end.

    It is not removed if the block fails: what is in it may serve the next attempt.
    """
    if tmp_dir is not None:
        Path(tmp_dir).mkdir(parents=True, exist_ok=True)
        yield Path(tmp_dir)
        return
    scratch = folder / _SCRATCH
    scratch.mkdir(exist_ok=True)
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
