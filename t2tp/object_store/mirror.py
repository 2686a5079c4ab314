"""Mirrors a bucket address in a local directory: downloads and uploads files in a safe order."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from absl import logging

from t2tp.atomic_file import is_unfinished, write_text
from t2tp.object_store.store import Store, StoreError, is_address, looks_like_address, split
from t2tp.object_store.store_lock import StoreLock

# Seconds from one search for changed files to the next.
PERIOD_SECONDS = 5.0
# A file that grows, such as events, is uploaded as a whole each time. The time between two uploads
# of the file is `_GROWING_PERIODS` times `PERIOD_SECONDS`, plus the file's size divided by
# `_GROWING_RATE` (bytes/s).
_GROWING_PERIODS, _GROWING_RATE = 6, 1 << 18
# Data files up to this size are downloaded as a whole.
_SMALL_BYTES = 4 << 20
# A directory is complete if it has its marker. The marker is uploaded last and deleted first.
_MARKER, _MANIFEST = "FINISHED", "manifest.json"
_MARKERS = (_MARKER, _MANIFEST, "saved_model.pb")
# Files that are uploaded last. `config.json` makes a directory a Hugging Face checkpoint.
_LAST = (*_MARKERS, "config.json")
# `checkpoints/step-00000100`, the directory of a checkpoint.
_STEP = re.compile(r"(?:.*/)?step-\d{8,}")
# Names of files that are never uploaded: work in progress, and the local lock (the store has a
# `StoreLock` instead).
_LOCAL = re.compile(r"\..*|.*\.(tmp|discarded|damaged|diverged)(-\d+)?|run\.lock")
# Files that `CheckedFile` reads in ranges.
_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.(?!checks$|json$)\w+(\.begins)?")
_MAX_NAME = 255  # Bytes of a file's name.
# Outputs that no program reads.
_OUTPUT = re.compile(r"events\.out\.tfevents\..*|export|decodes|plugins")
# The address of a checkpoint in a run, or the prefix of the checkpoint's files (`.../variables`).
_INSIDE_RUN = re.compile(r"(\w+://[^/]+/.+?)(/checkpoints)?/step-\d{8,}(/variables)?")
_IN_TEXT = re.compile(r"(?:s3|gs|az)://[^:,]*")
_WITH_SECRET = re.compile(r"(?:s3|gs|az)://[^,]*[@?][^,]*")
# A *hole* is a sparse local file of an object's size; byte ranges are fetched when they are read.
# The sticky bit of a file's mode marks a hole: this bit has no meaning for files, and new files
# lack it.
_HOLE_MODE = 0o644 | stat.S_ISVTX


class Mirror:
    """A local directory (or file) that mirrors the objects below an address.

    Several processes of a host may share a mirror. A lock lets one process at a time read or change
    it. The processes share a record of the files that are equal to their objects.

    Attributes:
      store: the objects.
      path: the local directory.
      lock: the lock of the run, if this process trains here. Only a process with the lock deletes
        checkpoints in the store. Once the lock is lost, nothing more is uploaded.
      is_watched: whether the session's thread uploads and downloads changes.
    """

    def __init__(self, address: str) -> None:
        """Sets the paths; sends no request."""
        self.store = Store(address)
        self.path = _local(address)
        self.lock: StoreLock | None = None
        self.is_watched = False
        name = hashlib.sha256(self.store.address.encode()).hexdigest()[:32]
        self._record = cache_directory() / "records" / name
        self._lost = self._record.with_suffix(".lost")
        self._uploaded_at: dict[str, float] = {}

    def place(self) -> str:
        """Returns a random id of the mirror: the same for all trainers that use this mirror."""
        path = self._record.with_suffix(".place")
        with self._locked():
            if not path.exists():
                write_text(path, uuid.uuid4().hex)
            return path.read_text()

    def pull(self, *, again: bool = False) -> None:
        """Downloads new objects; the data files of checkpoints, and large shards, become holes.

        Args:
          again: whether the mirror has been pulled before. If so, a missing local file was deleted
            locally, and is not downloaded again.

        Raises:
          StoreError: the store rejects a request, does not answer, or has lost the run's files.
        """
        with self._locked() as entries:
            listed = self.store.list()
            objects = {name: listed[name] for name in listed if not _is_local(name)}
            for name in [each for each in objects if not _has_path(each, objects)]:
                if not again:
                    logging.warning(
                        f"{self.store.address}/{name} is left out: no file has this name"
                    )
                del objects[name]
            if entries and not objects:
                raise StoreError(
                    f"{self.store.address} has lost its files. {self.path} has copies, maybe"
                    " without the data of checkpoints: restore the files from a backup, or delete"
                    " the copies to start again"
                )
            if not again and self._lost.exists():
                self._set_aside(entries, objects)
            deleted = entries.keys() - objects.keys()
            for step in filter(None, set(map(_step_of, deleted))):
                if self._is_dispensable(step, entries, objects):
                    shutil.rmtree(self.path / step, ignore_errors=True)
            for name in deleted:
                if _is_hole(self.path / name):
                    (self.path / name).unlink()
                self._note(entries, name)
            states = {name: _state(self.path / name) for name in objects}
            changed_here = {
                _step_of(name) or name
                for name, state in states.items()
                if state not in (None, [-1, 0], entries.get(name, (None,))[0])
            }
            for name in sorted(filter(lambda name: _is_read(name, objects), objects), key=_order):
                path, (size, version) = self.path / name, objects[name]
                if version == entries.get(name, (None, None))[1] and (states[name] or again):
                    continue
                if (_step_of(name) or name) in changed_here and (self.lock or not _step_of(name)):
                    continue  # The local file was changed since it was downloaded or uploaded.
                with contextlib.suppress(FileNotFoundError):  # Deleted after it was listed.
                    if _has_ranges(name, objects):
                        _make_hole(path, size)
                    else:
                        self.store.get(name, path)
                    self._note(entries, name, _state(path), version)

    def _set_aside(self, *known: Mapping[str, object]) -> None:
        """Renames checkpoints that were written here after another host had taken over the run."""
        for step in filter(None, set(map(_step_of, self._names()))):
            if not any(f"{step}/{_MARKER}" in names for names in known):
                aside = self.path / f"{step}.diverged-{time.time_ns()}"
                (self.path / step).rename(aside)
                logging.warning("kept, and not uploaded, as another host had the run: %s", aside)
        self._lost.unlink()

    def _is_dispensable(
        self, step: str, entries: dict[str, Any], objects: dict[str, tuple[int, str]]
    ) -> bool:
        """Whether to delete a local checkpoint because it was deleted in the store.

        A checkpoint with holes is deleted, because the holes cannot be filled any more. A complete
        checkpoint is deleted if it has not changed since its upload, the store has a later
        checkpoint, and this process does not train.
        """
        states = {name: _state(self.path / name) for name in self._names(step)}
        later = (name for name in objects if name.endswith(f"/{_MARKER}"))
        return any(map(_is_hole, map(self.path.joinpath, states))) or (
            self.lock is None
            and all(state == entries.get(name, (None,))[0] for name, state in states.items())
            and any(_follows(_step_of(name), step) for name in later)
        )

    def push(self, *, is_last: bool = False) -> None:
        """Uploads changed files, markers last; then deletes the objects of deleted checkpoints.

        The last push also uploads growing files that were uploaded recently.
        """
        has_all = True
        with self._locked() as entries:
            states = {name: state for name in self._names() if (state := _state(self.path / name))}
            holes = {_step_of(name) or name for name, state in states.items() if state[0] < 0}
            changed = [
                name
                for name in states
                if states[name] != entries.get(name, (None,))[0]
                and (_step_of(name) or name) not in holes
                and (is_last or _step_of(name) or not self._is_recent(name, states[name][0]))
            ]
            # Asks the store now, so that a trainer whose lock was taken over uploads nothing more.
            # `_check_lock` reads only the result.
            if changed and self.lock:
                self.lock.is_held()
            # A directory's marker is deleted before files of the directory are overwritten.
            known = [PurePosixPath(name) for name in changed if name in entries]
            overwritten = {directory for path in known for directory in path.parents}
            for marker in [n for n in entries if PurePosixPath(n).name in _MARKERS]:
                if PurePosixPath(marker).parent in overwritten:
                    self._delete(marker, entries)
                    changed.append(marker)
            # A reader that finds `step-00000100/FINISHED` must find all other files of the step.
            for name in sorted({*changed} & states.keys(), key=_order):
                self._check_lock()
                try:
                    version = self.store.put(self.path / name, name)
                    self._note(entries, name, states[name], version)
                    self._uploaded_at[name] = time.monotonic()
                except FileNotFoundError:
                    if (self.path / name).exists():
                        raise
                    has_all = False  # Retention has deleted it: there is a newer checkpoint.
            deleted = [n for n in entries if self.lock and has_all and self._is_deleted(n)]
            # In the opposite order: without its marker, the rest of a step is not read.
            for name in sorted(deleted, key=lambda name: not name.endswith(_MARKER)):
                self._delete(name, entries)
        if is_last and not has_all:
            self.push(is_last=True)

    def _delete(self, name: str, entries: dict[str, Any]) -> None:
        self._check_lock()
        self.store.delete(name)
        self._note(entries, name)

    def _check_lock(self) -> None:
        """Raises StoreError if another host has taken over the run."""
        if self.lock and self.lock.is_lost:
            self._lost.touch()
            raise StoreError(f"another host has taken over the lock of {self.store.address}")

    def _is_recent(self, name: str, size: int) -> bool:
        wait = _GROWING_PERIODS * PERIOD_SECONDS + size / _GROWING_RATE
        return time.monotonic() < self._uploaded_at.get(name, -wait) + wait

    def _is_deleted(self, name: str) -> bool:
        """Whether a file belongs to a checkpoint that was deleted, not set aside as damaged."""
        path = self.path / name
        is_missing = bool(_step_of(name)) and not path.exists()
        return is_missing and not any(path.parent.parent.glob(f"{path.parent.name}.damaged*"))

    def _names(self, directory: str = "") -> Iterator[str]:
        """Yields the names of the files to upload, in the whole mirror or in `directory`."""
        for path in [self.path / directory, *(self.path / directory).rglob("*")]:
            name = self.name_of(path)
            if path.is_file() and not _is_local(name):
                yield name

    def name_of(self, path: Path) -> str:
        """Returns the name of a path in the mirror; "" for the mirror itself."""
        return "" if path == self.path else path.relative_to(self.path).as_posix()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Locks the record and yields it: name -> [state of the file, id of the object]."""
        self._record.parent.mkdir(parents=True, exist_ok=True)
        entries: dict[str, Any] = {}
        with self._record.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                for line in (lines := self._record.read_text().splitlines()):
                    with contextlib.suppress(ValueError):  # The machine stopped while writing it.
                        name, *entry = json.loads(line)
                        entries[name] = entry
                entries = {name: entry for name, entry in entries.items() if entry}
                if len(lines) > 4 * len(entries) + 100:
                    write_text(self._record, "".join(map(_line, entries.items())))
            yield entries

    def _note(self, entries: dict[str, Any], name: str, *entry: object) -> None:
        """Sets or deletes an entry; adds its line to the record at once, in case a kill follows."""
        entries[name] = entry
        with self._record.open("a") as file:
            file.write(_line((name, entry)))
        if not entry:
            del entries[name]


class Session:
    """The mirrors that a program has opened, and the thread that uploads their changes.

    Attributes:
      mirrors: the open mirrors.
      uploads: whether this process uploads changes. Only one of the processes that share a
        directory may upload.
    """

    def __init__(self) -> None:
        self.mirrors: list[Mirror] = []
        self.uploads = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)

    def open(self, address: str, *, is_watched: bool = True) -> None:
        """Opens the mirror of an address, or of the run that contains the address.

        The thread uploads changes if `is_watched`; otherwise they are uploaded at the end.
        """
        if self.find(_local(address)) is not None:
            return
        mirror = Mirror(_run_of(address.rstrip("/")))
        mirror.pull()
        mirror.is_watched = is_watched
        self.mirrors.append(mirror)
        if is_watched and not self._thread.is_alive():
            self._thread.start()

    def find(self, path: Path) -> Mirror | None:
        """Returns the open mirror that contains a path; None if there is none."""
        return next((m for m in self.mirrors if path == m.path or m.path in path.parents), None)

    def close(self) -> None:
        """Uploads the remaining changes.

        Raises:
          StoreError: a file cannot be uploaded; the message names the local directory.
        """
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        errors = []
        for mirror in self.mirrors if self.uploads else ():
            try:
                mirror.push(is_last=True)
            except OSError as error:
                errors.append(
                    f"{error}; nothing is lost: the files are in {mirror.path}, and the next"
                    f" program on this host that is given {mirror.store.address} uploads them"
                )
        if errors:
            raise StoreError("; ".join(errors))

    def _run(self) -> None:
        failing: set[Mirror] = set()
        while not self._ended.wait(PERIOD_SECONDS):
            for mirror in [m for m in self.mirrors if self.uploads and m.is_watched]:
                try:
                    mirror.push()
                    mirror.pull(again=True)
                    failing.discard(mirror)
                except Exception as error:  # The thread goes on with other mirrors.
                    if mirror not in failing:
                        logging.error("%s; it is tried again until the program ends", error)
                    failing.add(mirror)


_session: Session | None = None
# The ranges that this process has fetched into holes, by the inode of the hole.
_filled: dict[int, set[tuple[int, int]]] = {}


@contextlib.contextmanager
def session() -> Iterator[Session]:
    """Opens addresses inside the context, and uploads the changes at its end.

    Raises:
      StoreError: a file cannot be uploaded. If another error ends the context, the StoreError is
        only logged.
    """
    global _session
    outer, _session = _session, Session()
    try:
        yield _session
    except BaseException:
        try:
            _session.close()
        except StoreError as error:
            logging.error("%s", error)
        raise
    else:
        _session.close()
    finally:
        _session = outer


def local_path(text: str, *, is_lazy: bool = False) -> str:
    """Replaces addresses by local paths, and downloads their small files.

    Args:
      text: the address of a run, of a directory or of a file; or a text with addresses that end at
        a comma or colon. Local paths stay unchanged.
      is_lazy: whether to download nothing now. `pulled` then downloads a directory's files before
        they are read.

    Raises:
      ValueError: the address is invalid, or no session is open.
      StoreError: the store refuses or does not answer.
    """

    def local(found: re.Match[str]) -> str:
        if _session is None:
            raise ValueError(f"{found[0]}: open it inside `with t2tp.object_store.session()`")
        if not is_lazy:
            _session.open(found[0])
        return str(_local(found[0]))

    if looks_like_address(text) and not is_address(text):
        split(text)  # Raises an error: a mistyped address is no path.
    for found in _WITH_SECRET.finditer(text):
        split(found[0].strip())  # Raises an error: an address must not contain a secret.
    return _IN_TEXT.sub(local, text)


def pulled(directory: Path) -> Path:
    """Opens the mirror that contains a local path, if there is one; returns the path."""
    if _session is not None and (address := address_of(directory)) != str(directory):
        _session.open(address, is_watched=False)
    return directory


def address_of(path: str | os.PathLike[str]) -> str:
    """Returns the address of a path in a mirror, and any other path unchanged."""
    with contextlib.suppress(ValueError):
        scheme, *parts = Path(path).absolute().relative_to(_stores()).parts
        return f"{scheme}://{'/'.join(parts)}"
    return str(path)


def with_addresses(text: str) -> str:
    """Replaces the paths of mirrors in a message by the addresses that the user knows."""
    return re.sub(rf"{re.escape(str(_stores()))}/(\w+)/", r"\1://", text)


def mirror_of(path: str | os.PathLike[str]) -> Mirror | None:
    """Returns the open mirror that contains a path; None if the path is in no mirror."""
    return None if _session is None else _session.find(Path(path).absolute())


def hole_of(path: Path) -> tuple[Store, str] | None:
    """Returns the store and the object's name for a hole; None for an ordinary file."""
    mirror = mirror_of(path)
    if mirror is None or not _is_hole(path):
        return None
    return mirror.store, mirror.name_of(path.absolute())


def fill(path: Path, ranges: Sequence[tuple[int, int]], *, again: bool = False) -> None:
    """Fetches byte ranges (begin, end) into a hole; does nothing for an ordinary file.

    With `again`, also fetches ranges that this process has already fetched, because they may be
    damaged.
    """
    hole = hole_of(path)
    if hole is not None:
        with path.open("r+b") as file:
            (store, name), status = hole, os.fstat(file.fileno())
            filled = _filled.setdefault(status.st_ino, set())
            if not status.st_blocks:  # A new file may have the inode of a deleted one.
                filled.clear()
            missing = [each for each in ranges if again or each not in filled]
            store.read_ranges(name, missing, lambda at, part: os.pwrite(file.fileno(), part, at))
            filled.update(missing)


def cache_directory() -> Path:
    """Returns the directory of all mirrors: T2TP_CACHE, or t2tp in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("T2TP_CACHE") or Path(base, "t2tp")).absolute()


def _line(entry: tuple[str, Sequence[object]]) -> str:
    """Formats a line of a record. A line break precedes it, as the previous line may be cut off."""
    name, values = entry
    return "\n" + json.dumps([name, *values])


def _stores() -> Path:
    return cache_directory() / "stores"


def _local(address: str) -> Path:
    return _stores().joinpath(*split(address))


def _run_of(address: str) -> str:
    """Returns the address of the run that contains an address, or the address itself."""
    if inside := _INSIDE_RUN.fullmatch(address):
        return inside[1]
    run = address.removesuffix("/checkpoints")
    if run != address and "/" in split(run)[1]:
        with contextlib.suppress(FileNotFoundError):
            Store(run).read("run.yaml")
            return run
    return address


def _state(path: Path) -> list[int] | None:
    """Returns a file's size and time of the last change; size -1: a hole; None: no file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    is_hole = status.st_mode & stat.S_ISVTX and stat.S_ISREG(status.st_mode)
    return [-1, 0] if is_hole else [status.st_size, status.st_mtime_ns]


def _is_hole(path: Path) -> bool:
    return (_state(path) or [0])[0] < 0


def _make_hole(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        os.fchmod(file.fileno(), _HOLE_MODE)
        file.truncate(size)


def _step_of(name: str) -> str:
    """Returns the directory of the checkpoint that contains a file; "" if there is none."""
    parent = str(PurePosixPath(name).parent)
    return parent if _STEP.fullmatch(parent) else ""


def _follows(later: str, step: str) -> bool:
    """Whether a checkpoint is later than another checkpoint in the same directory."""
    (directory, _, number), (other, _, its_number) = later.rpartition("-"), step.rpartition("-")
    return directory == other and int(number) > int(its_number)


def _is_local(name: str) -> bool:
    return any(_LOCAL.fullmatch(each) or is_unfinished(each) for each in PurePosixPath(name).parts)


def _has_path(name: str, objects: Mapping[str, object]) -> bool:
    """Whether a local file can have an object's name: a file cannot be a directory, too."""
    path = PurePosixPath(name)
    fits = all(len(os.fsencode(part)) <= _MAX_NAME for part in path.parts)
    return fits and not any(str(parent) in objects for parent in path.parents)


def _is_read(name: str, objects: dict[str, Any]) -> bool:
    """Whether programs read an object. They do not read outputs or incomplete checkpoints."""
    is_output = any(map(_OUTPUT.fullmatch, PurePosixPath(name).parts))
    is_whole = not (step := _step_of(name)) or f"{step}/{_MARKER}" in objects
    return is_whole and not is_output and not _is_local(name)


def _has_ranges(name: str, objects: dict[str, tuple[int, str]]) -> bool:
    """Whether readers read only ranges of an object, so that the mirror can have a hole for it."""
    if _step_of(name):
        return ".data-" in name
    is_data = any(str(parent / _MANIFEST) in objects for parent in PurePosixPath(name).parents)
    return is_data and objects[name][0] > _SMALL_BYTES and bool(_SHARD.fullmatch(name))


def _order(name: str) -> tuple[Any, ...]:
    """Returns the sort key of an upload.

    Files outside checkpoints come first, then one checkpoint after another. In each of these
    groups of files, the markers are last.
    """
    path = PurePosixPath(name)
    return _step_of(name), path.name in _LAST, -len(path.parts), name
