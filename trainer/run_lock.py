"""Two trainers do not write into one folder."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import socket
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from t2tp.mesh.cluster import Cluster
from t2tp.trainer.errors import UsageError
from t2tp.trainer.together import OtherProcessesError

LOCK_FILE = "run.lock"

# Network file systems remember for up to a minute what a file was, or that there was none.
_SEEN_SECONDS = 60.0


class RunLockedError(UsageError):
    """Another process trains in the folder, or it cannot be written."""


class RunLock:
    """While this is active, no other process trains in the folder.

    The lock belongs to the living process: when it ends, however it does, the system takes the lock
    off, and the file that stays behind locks nothing. Of several processes of a run, process 0
    holds the lock for all, and all hear whether it could, and whether they share the folder. It may
    be entered again while it is held.
    """

    def __init__(self, output_dir: str, cluster: Cluster) -> None:
        """Locks nothing yet.

        Args:
          output_dir: the folder of the run; made on entering if it is not there.
          cluster: the processes of the run, which enter together.
        """
        self._path = Path(output_dir) / LOCK_FILE
        self._cluster = cluster
        self._descriptor: int | None = None
        self._depth = 0

    def __enter__(self) -> RunLock:
        """Takes the lock.

        Raises:
          RunLockedError: another process trains in the folder, or it cannot be written.
          OtherProcessesError: the processes of the run have different folders.
        """
        if self._depth == 0:
            word = uuid.uuid4().hex
            refusal = self._acquire(word) if self._cluster.leads else ""
            refusal, word = json.loads(self._cluster.agree("run lock", json.dumps([refusal, word])))
            if refusal:
                raise RunLockedError(refusal)
            try:
                self._check_shared(word)
            except BaseException:
                self._release()
                raise
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._release()

    def _release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _check_shared(self, word: str) -> None:
        """Refuses processes whose folders are not the one in which process 0 holds the lock.

        Args:
          word: that process 0 has just written there.
        """
        if self._cluster.peers is None:
            return
        finds_it = self._cluster.leads or self._await(word)
        folder = str(self._path.parent.absolute())
        patience = self._cluster.time_limit + _SEEN_SECONDS
        said = self._cluster.exchange("run folder", json.dumps([finds_it, folder]), patience)
        (_, first), *others = (json.loads(each) for each in said)
        for process_id, (is_shared, theirs) in enumerate(others, start=1):
            if not is_shared:
                raise OtherProcessesError(
                    f"{theirs} of process {process_id} is not {first} of process 0: what process 0"
                    f" writes into its {LOCK_FILE} is not seen there; output_dir must be one folder"
                    " that all processes share"
                )

    def _await(self, word: str) -> bool:
        """Whether the lock's file has the word, or gets it while a network's may be late."""
        deadline = time.monotonic() + _SEEN_SECONDS
        while self._note().get("word") != word:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _acquire(self, word: str) -> str:
        """Takes the lock; says in a sentence why not, if that cannot be."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            return f"output_dir cannot be written: {error}"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _note_of(word).encode(), 0)
            os.fsync(descriptor)  # For other hosts to see it.
        except BlockingIOError:
            os.close(descriptor)
            return (
                f"{self._path.parent} is being trained in by {self._holder()}: wait for its end,"
                " end it, or choose another output_dir"
            )
        except OSError as error:
            os.close(descriptor)
            return f"{self._path} cannot be locked: {error}"
        self._descriptor = descriptor
        return ""

    def _holder(self) -> str:
        """Who holds the lock, for people."""
        note = self._note()
        if not {"pid", "host", "since"} <= note.keys():  # It is just beginning, or just ending.
            return "another process"
        return f"process {note['pid']} on {note['host']}, since {note['since']}"

    def _note(self) -> dict[str, Any]:
        """What is in the file: nothing where nobody holds the lock."""
        try:
            note = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}


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
