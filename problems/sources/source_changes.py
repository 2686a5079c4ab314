"""Records the state of a user's files when data are made, and finds later changes."""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from t2tp.atomic_file import write_text
from t2tp.problems.data.manifest import SOURCES_FILE
from t2tp.problems.sources.user_files import matching
from t2tp.typed_files import read_json

# Files are compared by size in bytes and modification time in nanoseconds.
_State = list[int]
# Max bytes of the record, which has about 100 bytes for each file.
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class _SourceRecord:
    """The contents of the record: absolute patterns, and the states of the files that match."""

    patterns: list[str]
    files: dict[str, _State]


def write_sources(directory: Path, patterns: Iterable[str]) -> None:
    """Records the present state of the files that match `patterns` (see `find_files`)."""
    absolute = [os.path.abspath(Path(pattern).expanduser()) for pattern in patterns]
    record = {"patterns": absolute, "files": _states(_matching(absolute))}
    write_text(directory / SOURCES_FILE, json.dumps(record, indent=0) + "\n")


def changed_sources(directory: Path) -> str:
    """Describes changes since `write_sources`; "" if none, or if no file exists any more."""
    record = read_json(directory / SOURCES_FILE, _SourceRecord, _MAX_BYTES)
    old_states = record.files
    states = _states(old_states)
    gone = [path for path in old_states if path not in states]
    if len(gone) == len(old_states):  # the data were copied from another machine
        return ""
    # Patterns of somebody else's data could match the whole file system.
    if any(states.get(path) == state for path, state in old_states.items()):
        states = {**_states(_matching(record.patterns)), **states}
    changes = {
        "changed": [
            path for path in old_states if path in states and states[path] != old_states[path]
        ],
        "new": [path for path in states if path not in old_states],
        "gone": gone,
    }
    return "; ".join(f"{what}: {named(paths)}" for what, paths in changes.items() if paths)


def _matching(patterns: Sequence[str]) -> list[str]:
    return [path for pattern in patterns for path in matching(pattern)]


def _states(paths: Iterable[str]) -> Mapping[str, _State]:
    states = {}
    for path in sorted(paths):
        with contextlib.suppress(OSError):  # deleted or unreadable
            if os.path.isfile(path):
                state = os.stat(path)
                states[path] = [state.st_size, state.st_mtime_ns]
    return states


def named(paths: Sequence[str]) -> str:
    """Formats the first path and the number of further paths."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
