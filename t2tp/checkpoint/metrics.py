"""Evaluation metrics of checkpoints, and which checkpoint is best.

The metrics are in a small file in the checkpoint's directory, so that they are deleted with it.
The marker does not cover them, because evaluations may come later.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from t2tp import untrusted_json
from t2tp.atomic_file import write_text
from t2tp.suggestions import check_known

METRICS = "metrics.json"


def record_metrics(directory: Path, metrics: Mapping[str, float]) -> None:
    """Writes a checkpoint's metrics into its directory, replacing earlier ones.

    Raises:
      OSError: the file cannot be written.
    """
    numbers = {name: float(value) for name, value in metrics.items()}
    write_text(directory / METRICS, json.dumps(numbers, indent=1) + "\n")


def read_metrics(directory: Path) -> dict[str, float]:
    """Returns the metrics of a checkpoint, by name; none if it was not evaluated.

    An unreadable or damaged file counts as none, with a warning.
    """
    path = directory / METRICS
    try:
        metrics = untrusted_json.read_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logging.warning("Skipping %s, which cannot be read: %s", path, error)
        return {}
    if not all(map(_is_number, metrics.values())):
        logging.warning("Skipping %s, which is damaged: it is not numbers by name", path)
        return {}
    return metrics


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class BestMetric:
    """The criterion of the best checkpoint.

    Attributes:
      metric: name of a metric.
      is_min: whether the min value is the best, not the max.
    """

    metric: str
    is_min: bool

    @classmethod
    def parse(cls, text: str) -> BestMetric:
        """Reads `min:METRIC` or `max:METRIC`.

        Raises:
          ValueError: the text is neither.
        """
        kind, _, metric = text.partition(":")
        if kind not in ("min", "max") or not metric:
            raise ValueError(
                f"{text!r} is no goal: write min:METRIC or max:METRIC, as in max:accuracy"
            )
        return cls(metric, kind == "min")

    def value_of(self, metrics: Mapping[str, float]) -> float:
        """Returns the metric's value.

        Raises:
          LookupError: the metric is missing; the error suggests similar names.
        """
        sentence = f"{self.metric!r} is not evaluated"
        check_known(self.metric, metrics, "metrics", sentence, LookupError)
        return metrics[self.metric]

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another; False for NaN."""
        return value < than if self.is_min else value > than

    def best(self, directories: Mapping[int, Path]) -> tuple[int, float] | None:
        """Returns step and value of the best of some checkpoints; of equals, the oldest.

        Args:
          directories: directories of the checkpoints, by step.

        Returns:
          None if none of them was evaluated.
        """
        best: tuple[int, float] | None = None
        for step, directory in sorted(directories.items()):
            value = read_metrics(directory).get(self.metric, math.nan)
            if not math.isnan(value) and (best is None or self.is_better(value, best[1])):
                best = step, value
        return best
