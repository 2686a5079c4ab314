"""`--log_json`: what happens in a run, a line of JSON each, for programs that watch it."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from t2tp.trainer.errors import UsageError
from t2tp.whole_file import write_bytes

STDOUT = "-"

# How each line begins.
_BEGINNING = b'{"event": '

# Events that come again when their steps do.
_REPEATED = ("report", "evaluation", "checkpoint", "skipped")


class JsonLog:
    """Writes lines such as `{"event": "report", "step": 100, "at": "2026-...", "loss": 3.2}`.

    Lines are added to a file that is there. What a crash has left of a line is cut off, and what a
    resumed training will write again is taken out. JSON has no NaN and no infinity: they are
    written as the texts "nan", "inf" and "-inf".
    """

    def __init__(self, path: str = "") -> None:
        """Opens nothing yet.

        Args:
          path: of the file; `-`: stdout; empty: nothing is written.
        """
        self._path = path
        self._file: TextIO | None = None
        self._lock = threading.Lock()  # Checkpoints are written in a thread of their own.

    def open(self) -> None:
        """Opens the file, so that it is known early whether that can be done.

        Raises:
          UsageError: it cannot be written.
        """
        if self._path in ("", STDOUT) or self._file is not None:
            return
        with self._refused():
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_off_unfinished_line(path)
            self._file = path.open("a", encoding="utf-8")

    def resume(self, run: str, step: int) -> None:
        """Opens the file for a training, and takes out what it writes again.

        These are reports and the like of later steps, left by a process that was killed after its
        last checkpoint. A file into which other runs have written as well stays as it is.

        Args:
          run: what the lines `began` of the run say of it.
          step: how many steps are done.

        Raises:
          UsageError: the file cannot be written.
        """
        path = Path(self._path)
        with self._refused():
            if self._path not in ("", STDOUT) and path.is_file():
                self._close()  # The file is replaced.
                _cut_back(path.resolve(), run, step)
        self.open()

    def write(self, event: str, step: int, facts: Mapping[str, Any] | None = None) -> None:
        """Writes a line.

        Args:
          event: what happened: see docs/watching.md.
          step: how many steps were done.
          facts: what else there is to say, plain JSON.

        Raises:
          UsageError: it cannot be written.
        """
        if not self._path:
            return
        self.open()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        line = {"event": event, "step": step, "at": now, **(facts or {})}
        text = json.dumps({name: _plain(value) for name, value in line.items()}, allow_nan=False)
        with self._lock, self._refused():
            print(text, file=self._file, flush=True)  # Of no file: stdout.

    def _close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """While this is active, what the system says against writing is said to the user."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"log_json={self._path} cannot be written: {error}") from error


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cut_back(path: Path, run: str, step: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    events = [_fields(line) for line in lines]
    runs = {fields.get("run") for fields in events if fields.get("event") == "began"}
    if runs != {run}:
        return
    kept = [
        line
        for line, fields in zip(lines, events, strict=True)
        if not (fields.get("event") in _REPEATED and fields.get("step", 0) > step)
    ]
    if len(kept) < len(lines):
        write_bytes(path, b"".join(kept))


def _fields(line: bytes) -> dict[str, Any]:
    """What a line says; nothing if it is none of ours."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) and type(fields.get("step")) is int else {}


def _cut_off_unfinished_line(path: Path) -> None:
    if not path.is_file():  # A device, such as /dev/stderr.
        return
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        rest = content[whole:]
        if rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest):
            file.truncate(whole)
        else:  # Somebody else has written it.
            file.write(b"\n")
