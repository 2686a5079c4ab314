"""Text files that appear under their name only when they are complete."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes or replaces a file (UTF-8), whole or not at all, whatever dies meanwhile.

    Raises:
        OSError: it cannot be written there; what was there is as it was.
    """
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
