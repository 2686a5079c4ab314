"""Makes a directory atomically, in several attempts if necessary."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import logging

from t2tp.atomic_file import remove_unfinished, sync, write_text
from t2tp.typed_files import read_text

# File of an unfinished directory with its plan. The plan describes everything that determines the
# data.
PLAN_FILE = ".plan"

# Default directory for downloads, inside the unfinished directory.
_SCRATCH = "scratch"


@contextmanager
def exclusive_build(directory: Path) -> Iterator[None]:
    """Holds the lock for making this directory; waits while another process has the lock.

    If a process was killed while it replaced the old directory, the replacement is completed first.

    Raises:
      OSError: the parent directory cannot be made or written.
    """
    parent = directory.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # Without O_NOFOLLOW, a link in data that somebody sent would empty the file it leads to.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        lock = os.fdopen(os.open(parent / f".{directory.name}.lock", flags, 0o644), "w")
    except OSError as error:
        raise OSError(error.errno, f"cannot write data: {error.strerror}", str(parent)) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.info("another process is making %s: waiting for it", directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
        _finish(directory)
        yield


@contextmanager
def atomic_directory(
    directory: Path, plan: str, is_worth_keeping: Callable[[Path], bool] = lambda partial: False
) -> Iterator[Path]:
    """Yields a temporary directory next to `directory`; replaces `directory` if the block succeeds.

    If the process is interrupted or the disk is full, the temporary directory is kept. After any
    other failure, it is kept only if `is_worth_keeping` returns True. The next attempt with the
    same plan continues from it. So every file in it must be complete or have a name that marks it
    as unfinished. Use this context inside `exclusive_build`.

    `plan` describes the content; the output of an attempt with another plan is removed.
    """
    partial, replaced = _neighbours(directory)
    shutil.rmtree(replaced, ignore_errors=True)
    _begin(partial, plan)
    try:
        yield partial
        (partial / PLAN_FILE).unlink()
        flush(partial)
    except (OSError, KeyboardInterrupt):
        raise
    except BaseException:
        if not is_worth_keeping(partial):
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if directory.exists():
        directory.rename(replaced)
    partial.rename(directory)
    sync(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _neighbours(directory: Path) -> tuple[Path, Path]:
    """Returns the temporary directory and, during replacement, the old directory."""
    return directory.with_name(f".{directory.name}.partial"), directory.with_name(
        f".{directory.name}.replaced"
    )


def _finish(directory: Path) -> None:
    """Completes a replacement during which a process was killed."""
    partial, replaced = _neighbours(directory)
    if directory.exists() or not replaced.exists():
        return
    # The old directory is renamed only when the new directory is complete and its plan is deleted.
    is_complete = partial.is_dir() and not (partial / PLAN_FILE).exists()
    (partial if is_complete else replaced).rename(directory)
    sync(directory.parent)


def _begin(partial: Path, plan: str) -> None:
    """Makes the temporary directory, unless an earlier attempt with the same plan has left it."""
    written = partial / PLAN_FILE
    if partial.is_symlink():
        partial.unlink()
    if _resume(partial, plan):
        logging.info("resuming the interrupted work in %s", partial)
        return
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    write_text(written, plan)


def _resume(partial: Path, plan: str) -> bool:
    """Removes the unfinished files of an earlier attempt; returns False if there is none to resume.

    An attempt with another plan is not resumed, nor a directory with links. t2tp makes no links, so
    somebody else made them, and the next attempt would read and write elsewhere.
    """
    try:
        if read_text(partial / PLAN_FILE) != plan:
            return False
    except (OSError, ValueError):
        return False
    for path, directories, files in os.walk(partial):
        if any(os.path.islink(os.path.join(path, name)) for name in (*directories, *files)):
            logging.warning("%s has links, so it is made again from the beginning", partial)
            return False
        remove_unfinished(path)
        if Path(path) == partial and _SCRATCH in directories:
            directories.remove(_SCRATCH)
    return True


def clear(partial: Path) -> None:
    """Empties the temporary directory, except for its plan and the `scratch_directory`."""
    for path in partial.iterdir():
        if path.name in (PLAN_FILE, _SCRATCH):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def scratch_directory(directory: Path, tmp_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yields `tmp_dir`, or a new directory inside `directory` if `tmp_dir` is None.

    The new directory is removed if the block succeeds; otherwise it stays for the next attempt.
    """
    if tmp_dir is not None:
        Path(tmp_dir).mkdir(parents=True, exist_ok=True)
        yield Path(tmp_dir)
        return
    scratch = directory / _SCRATCH
    scratch.mkdir(exist_ok=True)
    yield scratch
    shutil.rmtree(scratch)


def flush(directory: Path) -> None:
    """Syncs the directory and its contents to disk."""
    for path in directory.rglob("*"):
        sync(path)
    sync(directory)
