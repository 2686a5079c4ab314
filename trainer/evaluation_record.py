"""`eval.jsonl`: the evaluations of a run, a line of JSON each, in the order in which they came."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path

from absl import logging

from t2tp.trainer.errors import UsageError

FILE_NAME = "eval.jsonl"

# How each line begins.
_BEGINNING = b'{"step": '


class EvaluationRecord:
    """The evaluations of a run on one split.

    A line counts once it has its end: what a crash has left of one is cut off by the next writer,
    and nobody reads it. Whole lines that are no evaluations are skipped with a warning.
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
            content = self._path.read_bytes()
            whole = content.rfind(b"\n") + 1
            rest = content[whole:]
            if rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest):
                file.truncate(whole)
            else:  # Somebody else has written it.
                file.write(b"\n")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def by_step(self, up_to: int | None = None) -> dict[int, dict[str, float]]:
        """Step -> metrics, in the order of the steps; of two evaluations of a step, the later.

        Args:
          up_to: leaves out later steps: a run that went on from an earlier checkpoint has come to
            none of them again.

        Raises:
          UsageError: the file is there, and cannot be read.
        """
        found = {}
        for number, line in enumerate(self._whole_lines(), start=1):
            evaluation = _read_line(line)
            if evaluation is None:
                logging.warning("Skipping line %d of %s: it is no evaluation", number, self._path)
            elif up_to is None or evaluation[0] <= up_to:
                found[evaluation[0]] = evaluation[1]
        return dict(sorted(found.items()))

    def _whole_lines(self) -> list[bytes]:
        try:
            return self._path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error}") from error


def _read_line(line: bytes) -> tuple[int, dict[str, float]] | None:
    """Step and metrics of an evaluation; None if the line is something else."""
    try:
        fields = json.loads(line)
        step, metrics = fields["step"], fields["metrics"]
        numbers = {name: float(value) for name, value in metrics.items()}
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return (step, numbers) if type(step) is int else None
