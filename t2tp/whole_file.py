"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes or replaces a file (UTF-8), whole or not at all, whatever dies meanwhile.

    Raises:
        OSError: it cannot be written there, and is named; what was there is as it was.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], contents: bytes) -> None:
    """Writes or replaces a file, as `write_text`."""
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:  # a full disk: Python does not say which file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        unfinished.unlink(missing_ok=True)
