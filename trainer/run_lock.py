"""Two trainers do not write into one folder."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import socket
from pathlib import Path
from types import TracebackType

from t2tp.mesh.cluster import Cluster
from t2tp.trainer.errors import UsageError

LOCK_FILE = "run.lock"


class RunLockedError(UsageError):
    """Another process trains in the folder, or it cannot be written."""


class RunLock:
    """While this is active, no other process trains in the folder.

    The lock belongs to the living process: when it ends, however it does, the system takes the lock
    off, and the file that stays behind locks nothing. Of several processes of a run, process 0
    holds the lock for all, and all hear whether it could. It may be entered again while it is held.
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
        if self._depth == 0:
            refusal = self._cluster.agree(
                "run lock", self._acquire() if self._cluster.leads else ""
            )
            if refusal:
                raise RunLockedError(refusal)
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _acquire(self) -> str:
        """Takes the lock; says in a sentence why not, if that cannot be."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            return f"output_dir cannot be written: {error}"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _note().encode(), 0)
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
        try:
            note = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # It is just beginning, or just ending.
            return "another process"
        return f"process {note['pid']} on {note['host']}, since {note['since']}"


def _note() -> str:
    now = datetime.datetime.now(datetime.timezone.utc).astimezone()
    return json.dumps(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": now.isoformat(sep=" ", timespec="seconds"),
        }
    )
