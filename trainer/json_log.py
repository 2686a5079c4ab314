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

STDOUT = "-"


class JsonLog:
    """Writes lines such as `{"event": "report", "step": 100, "at": "2026-...", "loss": 3.2}`.

    Lines are added to a file that is there. What a crash has left of a line is cut off. JSON has no
    NaN and no infinity: they are written as the texts "nan", "inf" and "-inf".
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

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """While this is active, what the system says against writing is said to the user."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"log_json={self._path} cannot be written: {error}") from error


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cut_off_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
