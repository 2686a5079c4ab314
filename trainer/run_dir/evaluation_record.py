"""`eval.jsonl`: the evaluations of a run as lines of JSON, in chronological order."""

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from absl import logging

from t2tp.atomic_file import write_bytes
from t2tp.trainer.errors import UsageError
from t2tp.typed_files import parse_json, read_bytes

FILE_NAME = "eval.jsonl"


class _Evaluation(TypedDict):
    step: int
    metrics: dict[str, float]


class EvaluationRecord:
    """The evaluations of a run on one split.

    The file is replaced atomically. Lines that are not evaluations are skipped with a warning.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Sets the subdirectory of the run for evaluations on this split."""
        self._path = Path(directory) / FILE_NAME

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds an evaluation and syncs it to the disk; replaces an earlier one of the same step.

        A run that was killed and resumed may reach a step twice.

        Raises:
          UsageError: the file cannot be written.
        """
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        line = json.dumps({"step": step, "metrics": dict(metrics), "at": at}).encode()
        lines = self._read().splitlines()
        others = [each for each in lines if (found := _read_line(each)) is None or found[0] != step]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self._path, b"".join(each + b"\n" for each in [*others, line]))
        except OSError as error:  # An error of `write` or `fsync` does not name the file.
            raise UsageError(f"{self._path} cannot be written: {error}") from error

    def by_step(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of each step, in the order of steps.

        Raises:
          UsageError: the file exists and cannot be read.
        """
        metrics = {}
        for number, line in enumerate(self._read().splitlines(), start=1):
            evaluation = _read_line(line)
            if evaluation is None:
                logging.warning("Skipping line %d of %s: not an evaluation", number, self._path)
            else:
                metrics[evaluation[0]] = evaluation[1]
        return dict(sorted(metrics.items()))

    def _read(self) -> bytes:
        try:
            return read_bytes(self._path)
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            raise UsageError(f"{self._path} cannot be read: {error}") from error


def _read_line(line: bytes) -> tuple[int, dict[str, float]] | None:
    """Parses step and metrics of an evaluation; returns None for any other line."""
    try:
        fields = parse_json(line, FILE_NAME, _Evaluation, allow_infinite=True)
    except ValueError:
        return None
    return fields["step"], fields["metrics"]
