"""The lock file of a run's directory; see `RunLock`."""

import fcntl
import os
from pathlib import Path

LOCK_FILE = "run.lock"


def is_locked(directory: str | os.PathLike[str]) -> bool:
    """Whether a process trains in the directory."""
    try:
        with Path(directory, LOCK_FILE).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
