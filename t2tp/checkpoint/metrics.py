"""What evaluations found out about checkpoints, and which of them is the best.

The metrics are in a small file in the checkpoint's folder, so that they come and go with it. They
are no part of what was saved: evaluations come later, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from t2tp.nearest import nearest
from t2tp.whole_file import write_text

METRICS = "metrics.json"


def record_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Writes a checkpoint's metrics into its folder, in the place of earlier ones.

    Raises:
      OSError: they cannot be written there.
    """
    numbers = {name: float(value) for name, value in metrics.items()}
    write_text(folder / METRICS, json.dumps(numbers, indent=1) + "\n")


def read_metrics(folder: Path) -> dict[str, float]:
    """The metrics of a checkpoint, by name; none if it was not evaluated.

    A file that cannot be read, or holds something else, is as none; it warns.
    """
    path = folder / METRICS
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logging.warning("Skipping %s, which cannot be read: %s", path, error)
        return {}
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        logging.warning("Skipping %s, which is damaged: it is not numbers by name", path)
        return {}
    return metrics


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class Goal:
    """What makes a checkpoint the best one.

    Attributes:
      metric: name of a metric.
      is_least: whether the least value is the best, and not the greatest.
    """

    metric: str
    is_least: bool

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Reads `min:METRIC` or `max:METRIC`.

        Raises:
          ValueError: it is neither.
        """
        kind, _, metric = text.partition(":")
        if kind not in ("min", "max") or not metric:
            raise ValueError(
                f"{text!r} does not say what is best: write min:METRIC or max:METRIC, as in"
                " max:accuracy"
            )
        return cls(metric, kind == "min")

    def value_of(self, metrics: Mapping[str, float]) -> float:
        """The metric's value.

        Raises:
          LookupError: it is not among the metrics; names the nearest.
        """
        if self.metric not in metrics:
            raise LookupError(
                f"{self.metric!r} is not evaluated: {nearest(self.metric, metrics, 'metrics')}"
            )
        return metrics[self.metric]

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another; NaN never is."""
        return value < than if self.is_least else value > than

    def best(self, folders: Mapping[int, Path]) -> tuple[int, float] | None:
        """Step and value of the best of some checkpoints; of equals, the oldest.

        Args:
          folders: those of the checkpoints, by step.

        Returns:
          None if none of them was evaluated.
        """
        found: tuple[int, float] | None = None
        for step, folder in sorted(folders.items()):
            value = read_metrics(folder).get(self.metric, math.nan)
            if not math.isnan(value) and (found is None or self.is_better(value, found[1])):
                found = step, value
        return found
