"""What a user's files were when data were made from them, and what has changed since."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from t2tp.problems.manifest import SOURCES_FILE
from t2tp.whole_file import write_text

# Size in bytes, and nanoseconds of the last change: a file that has the same is taken for the same.
_State = list[int]


def write_sources(folder: Path, patterns: Iterable[str]) -> None:
    """Notes in the folder of the data what the files are like now.

    Args:
        folder: where the data are being made.
        patterns: which files, as `lines.find_files` takes them.
    """
    absolute = [os.path.abspath(Path(pattern).expanduser()) for pattern in patterns]
    noted = {"patterns": absolute, "files": _states(_matching(absolute))}
    write_text(folder / SOURCES_FILE, json.dumps(noted, indent=0) + "\n")


def changed_sources(folder: Path) -> str:
    """Says in half a sentence what has changed since; "" if nothing has, or all files are gone."""
    try:
        noted = json.loads((folder / SOURCES_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:  # made before files were noted
        return ""
    before: dict[str, _State] = noted["files"]
    now = _states({*_matching(noted["patterns"]), *before})
    gone = [path for path in before if path not in now]
    if len(gone) == len(before):  # the data were brought here from elsewhere
        return ""
    found = {
        "changed": [path for path in before if path in now and now[path] != before[path]],
        "new": [path for path in now if path not in before],
        "gone": gone,
    }
    return "; ".join(f"{what}: {named(paths)}" for what, paths in found.items() if paths)


def _matching(patterns: Sequence[str]) -> list[str]:
    return [path for pattern in patterns for path in glob.glob(pattern, recursive=True)]


def _states(paths: Iterable[str]) -> Mapping[str, _State]:
    states = {}
    for path in sorted(paths):
        with contextlib.suppress(OSError):  # it is gone, or not to be read any more
            if os.path.isfile(path):
                state = os.stat(path)
                states[path] = [state.st_size, state.st_mtime_ns]
    return states


def named(paths: Sequence[str]) -> str:
    """Names the first of some paths, and says how many more there are."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
