"""`eval.jsonl`: the evaluations of a run, a line of JSON each, in the order in which they came."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path

from t2tp.trainer.errors import UsageError

FILE_NAME = "eval.jsonl"


class EvaluationRecord:
    """The evaluations of a run on one split.

    A line counts once it has its end: what a crash has left of one is cut off by the next writer,
    and nobody reads it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Says where; the file is made by the first evaluation.

        Args:
          folder: of the evaluations, in the run's.
        """
        self._path = Path(folder) / FILE_NAME

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes an evaluation down; when this returns it is on the disk.

        Args:
          step: training steps behind the variables.
          metrics: by name.

        Raises:
          UsageError: it cannot be written; the disk is full, say.
        """
        line = {
            "step": step,
            "metrics": dict(metrics),
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        try:
            self._write(json.dumps(line).encode() + b"\n")
        except OSError as error:  # of which Python does not say which file it is about
            raise UsageError(f"{self._path} cannot be written: {error}") from error

    def _write(self, line: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            whole = _end_of_last_line(self._path)
            if whole < file.tell():
                file.truncate(whole)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def by_step(self, up_to: int | None = None) -> dict[int, dict[str, float]]:
        """Step -> metrics, in the order of the steps; of two evaluations of a step, the later.

        Args:
          up_to: leaves out later steps: a run that went on from an earlier checkpoint has come to
            none of them again.
        """
        if not self._path.exists():
            return {}
        content = self._path.read_bytes()[: _end_of_last_line(self._path)]
        found = {}
        for line in content.splitlines():
            evaluation = json.loads(line)
            if up_to is None or evaluation["step"] <= up_to:
                found[evaluation["step"]] = evaluation["metrics"]
        return dict(sorted(found.items()))


def _end_of_last_line(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1
