"""`RunLock`: keeps two trainings from writing into the same directory."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from t2tp.object_store.mirror import address_of, mirror_of
from t2tp.object_store.store import StoreError
from t2tp.object_store.store_lock import StoreLock
from t2tp.processes.cluster import Cluster
from t2tp.trainer import run_yaml
from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.heartbeat import HEARTBEAT_FILE
from t2tp.trainer.processes.multiprocess import ProcessMismatchError
from t2tp.trainer.run_dir.evaluation_record import FILE_NAME
from t2tp.trainer.run_dir.lock_file import LOCK_FILE
from t2tp.typed_files import read_json

# Files that a training replaces. As links in a run that somebody sent, they would lead to any other
# file of the user.
_WRITTEN = (LOCK_FILE, HEARTBEAT_FILE, run_yaml.FILE, f"eval/{FILE_NAME}")
# How long a run on several hosts waits for the lock: a file server keeps a lost host's lock for a
# while.
_RELEASED_SECONDS = 120.0


class RunLockedError(UsageError):
    """Another process trains in the directory, or the directory cannot be written."""


class RunMovedError(UsageError):
    """A process has lost the run's lock during training.

    The run's directory was moved or deleted, the lock file was replaced or deleted, or another host
    has taken over the lock in the object store.
    """


class RunLock:
    """A reentrant lock that keeps other processes from training in the directory.

    The lock is a locked file. The operating system releases the lock when the process ends, even if
    the process is killed. A run in an object store also has a lock in the store (`StoreLock`),
    which a killed process leaves behind. The next training takes over this leftover lock: at once
    if it uses the same local directory, otherwise after a minute.

    With several processes, process 0 acquires the lock and sends the result to the other processes,
    which check that they see the same directory.
    """

    def __init__(self, output_dir: str, cluster: Cluster, seen_seconds: float = 60.0) -> None:
        """Acquires nothing yet; entering the context acquires the lock.

        `seen_seconds` is the max time until a process sees another host's write to a file. Network
        file systems cache a file's contents, or its absence, for up to a minute.
        """
        self._path = Path(output_dir) / LOCK_FILE
        self._cluster = cluster
        self._seen_seconds = seen_seconds
        self._mirror = mirror_of(self._path.parent)
        self._store_lock: StoreLock | None = None
        self._descriptor: int | None = None
        self._depth = 0

    def __enter__(self) -> RunLock:
        """Acquires the lock.

        Raises:
          RunLockedError: another process trains in the directory, or the directory cannot be
            written.
          ProcessMismatchError: the processes of the run have different directories.
        """
        if self._depth == 0:
            word = uuid.uuid4().hex
            refusal = self._acquire_in_time(word) if self._cluster.is_main_process else ""
            refusal, word = self._cluster.process_broadcast("run lock", [refusal, word])
            if refusal:
                raise RunLockedError(refusal)
            try:
                self._check_shared(word)
            except BaseException:
                self._release()
                raise
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._release()

    def check_held(self) -> None:
        """Checks that the lock file at the run's path is still the file that this process locked.

        Raises:
          RunMovedError: the file was replaced or deleted, or another host has taken over the lock.
        """
        if self._descriptor is None:
            return
        if self._mirror and self._store_lock and self._store_lock.is_lost:
            raise RunMovedError(
                f"another host has taken over the lock of {self._mirror.store.address}, because"
                " this host did not renew it: the training stops and saves nothing more"
            )
        try:
            if os.path.samestat(os.stat(self._path), os.fstat(self._descriptor)):
                return
        except FileNotFoundError:
            pass
        raise RunMovedError(
            f"{self._path.parent} was moved or deleted, or its {LOCK_FILE} was, while this process"
            " trained in it: the training stops and saves nothing more"
        )

    def _release(self) -> None:
        if self._mirror and self._store_lock:
            try:
                # Before the release: a push deletes objects of removed checkpoints only while the
                # lock is held.
                self._mirror.push(is_last=True)
            except OSError as error:
                logging.error("%s", error)
            self._store_lock.release()
            # A lost lock stays in `_mirror.lock`, where it keeps the mirror from uploading more.
            if not self._store_lock.is_lost:
                self._mirror.lock = None
            self._store_lock = None
        if self._descriptor is not None:
            # The file is still locked, so its content is this process's, not the next holder's.
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _check_shared(self, word: str) -> None:
        """Raises ProcessMismatchError if a process does not find `word` in its lock file."""
        if self._cluster.coordination is None:
            return
        finds_it = self._cluster.is_main_process or self._await(word)
        directory = str(self._path.parent.absolute())
        patience = self._cluster.time_limit + self._seen_seconds
        replies = self._cluster.process_allgather("run directory", [finds_it, directory], patience)
        (_, first), *others = replies
        for process_id, (is_shared, other) in enumerate(others, start=1):
            if not is_shared:
                raise ProcessMismatchError(
                    f"{other} of process {process_id} is not {first} of process 0: process"
                    f" {process_id} does not see what process 0 writes into {LOCK_FILE}; all"
                    " processes must share output_dir (or T2TP_CACHE, with an object store)"
                )

    def _await(self, word: str) -> bool:
        """Waits until the word appears in the lock file; returns False on timeout."""
        deadline = time.monotonic() + self._seen_seconds
        while self._note().get("word") != word:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _acquire_in_time(self, word: str) -> str:
        """Calls `_acquire`; a run on several hosts retries for a while."""
        deadline = time.monotonic() + (0.0 if self._cluster.on_one_host else _RELEASED_SECONDS)
        while (refusal := self._acquire(word)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return refusal

    def _acquire(self, word: str) -> str:
        """Tries to acquire the lock; returns "", or why it failed."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for path in (self._path.parent / name for name in _WRITTEN):
                in_link = path.parent != self._path.parent and path.parent.is_symlink()
                if in_link or path.is_symlink() or (path.exists() and not path.is_file()):
                    return (
                        f"{path} is not a regular file: delete it, or put back the run's own file"
                    )
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            return f"output_dir cannot be written: {error}"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _note_of(word).encode(), 0)
            os.fsync(descriptor)  # Other hosts then see the content.
        except BlockingIOError:
            os.close(descriptor)
            return self._taken(self._note())
        except OSError as error:
            os.close(descriptor)
            return f"{self._path} cannot be locked: {error}"
        self._descriptor = descriptor
        return self._acquire_in_store()

    def _acquire_in_store(self) -> str:
        """Tries to acquire the lock in the run's object store, if any; see `_acquire`."""
        if self._mirror is None:
            return ""
        lock = StoreLock(self._mirror.store, LOCK_FILE, self._note(), self._mirror.place())
        try:
            refusal = self._taken(other) if (other := lock.acquire()) else ""
            if not refusal:
                self._store_lock = self._mirror.lock = lock
                # Other hosts may have saved checkpoints since the mirror was opened.
                self._mirror.pull(again=True)
                self._mirror.store.abort_uploads()
        except StoreError as error:
            refusal = str(error)
        if refusal:
            self._release()
        return refusal

    def _taken(self, note: Mapping[str, Any]) -> str:
        """Returns the error about a locked directory, given the lock's content."""
        holder = "another process"  # While a process starts or ends, its lock file is empty.
        if {"pid", "host", "since"} <= note.keys():
            holder = f"process {note['pid']} on {note['host']}, since {note['since']}"
        return (
            f"{address_of(self._path.parent)} is in use by {holder}: wait for its end, end it, or"
            " choose another output_dir"
        )

    def _note(self) -> dict[str, Any]:
        """Returns the content of the lock file, or {}."""
        try:
            return read_json(self._path, dict[str, Any])
        except (OSError, ValueError):
            return {}


def _note_of(word: str) -> str:
    now = datetime.datetime.now(datetime.timezone.utc).astimezone()
    return json.dumps(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": now.isoformat(sep=" ", timespec="seconds"),
            "word": word,
        }
    )
