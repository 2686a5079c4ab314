"""`--log_json`: the events of a run as lines of JSON, for other programs."""

import contextlib
import datetime
import json
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from t2tp.atomic_file import write_bytes
from t2tp.trainer.errors import UsageError

STDOUT = "-"

# How each line begins.
_BEGINNING = b'{"event": '

# A resumed training writes these events again when it repeats their steps.
_REPEATED = ("report", "evaluation", "checkpoint", "skipped")


class JsonLog:
    """Writes lines such as `{"event": "report", "step": 100, "at": "2026-...", "loss": 3.2}`.

    Appends to an existing file. A line that a crash left unfinished is truncated, and lines that a
    resumed training will write again are removed. JSON has no NaN and no infinity, so these values
    are written as the strings "nan", "inf" and "-inf".

    Methods raise a UsageError if the file cannot be written.
    """

    def __init__(self, path: str = "") -> None:
        """Prepares the log without opening it; `path` is `-` for stdout, empty for no log."""
        self._path = path
        self._file: TextIO | None = None
        self._lock = threading.Lock()  # Checkpoints are written in another thread.

    def open(self) -> None:
        """Opens the file, to fail early if it cannot be written.

        Raises:
          UsageError: the file cannot be written.
        """
        if self._path in ("", STDOUT) or self._file is not None:
            return
        with self._refused():
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_off_unfinished_line(path)
            self._file = path.open("a", encoding="utf-8")

    def resume(self, run: str, step: int) -> None:
        """Opens the file for a training and removes the events that will occur again.

        A process that was killed after its last checkpoint leaves such events, for example reports
        of later steps. The file is not changed if it has no `began` line, or a `began` line of
        another run. But a run may have been moved to another directory. So a `began` line whose
        directory no longer exists is taken for a line of this run if the file has a checkpoint
        event of `step`. If this event is missing, because the process was killed right after the
        save, it is added.

        `run` is the run's absolute path, and `step` the number of steps done.

        Raises:
          UsageError: the file cannot be written.
        """
        path, lacks_checkpoint = Path(self._path), False
        with self._refused():
            if self._path not in ("", STDOUT) and path.is_file():
                self._close()  # The file is replaced.
                lacks_checkpoint = _cut_back(path.resolve(), run, step)
        self.open()
        if lacks_checkpoint:
            self.write("checkpoint", step)

    def write(self, event: str, step: int, facts: Mapping[str, Any] | None = None) -> None:
        """Writes a line.

        Args:
          event: name of the event; see docs/watching.md.
          step: number of steps done.
          facts: other fields of the event; plain JSON values.

        Raises:
          UsageError: the file cannot be written.
        """
        if not self._path:
            return
        self.open()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        line = {"event": event, "step": step, "at": now, **(facts or {})}
        text = json.dumps({name: _plain(value) for name, value in line.items()}, allow_nan=False)
        with self._lock, self._refused():
            print(text, file=self._file, flush=True)  # None is stdout.

    def _close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """Turns system errors into errors for the user."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"log_json={self._path} cannot be written: {error}") from error


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cut_back(path: Path, run: str, step: int) -> bool:
    """Removes events after `step`; returns whether the run's file lacks its checkpoint event."""
    lines = path.read_bytes().splitlines(keepends=True)
    events = [_fields(line) for line in lines]
    runs = [fields.get("run") for fields in events if fields.get("event") == "began"]
    is_resumed = any((e.get("event"), e.get("step")) == ("checkpoint", step) for e in events)
    if not runs or not all(
        each == run or (is_resumed and isinstance(each, str) and not Path(each).exists())
        for each in runs
    ):
        return False
    kept_lines = [
        line
        for line, fields in zip(lines, events, strict=True)
        if not (fields.get("event") in _REPEATED and fields.get("step", 0) > step)
    ]
    if len(kept_lines) < len(lines):
        write_bytes(path, b"".join(kept_lines))
    return step > 0 and not is_resumed


def _fields(line: bytes) -> dict[str, Any]:
    """Parses a line; returns {} if it is not an event."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) and type(fields.get("step")) is int else {}


def _cut_off_unfinished_line(path: Path) -> None:
    if not path.is_file():  # A device, such as /dev/stderr.
        return
    with path.open("r+b") as file:
        content = file.read()
        length = content.rfind(b"\n") + 1
        rest = content[length:]
        if rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest):
            file.truncate(length)
        else:  # Another program has written the unfinished line.
            file.write(b"\n")
