"""Evaluation metrics of checkpoints, and which checkpoint is best.

A checkpoint's metrics are a small file in its directory. The marker does not list this file,
because a checkpoint may be evaluated after it is finished.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from absl import logging

from t2tp.atomic_file import write_text
from t2tp.best_metric import BestMetric
from t2tp.typed_files import read_json

METRICS = "metrics.json"


def record_metrics(directory: Path, metrics: Mapping[str, float]) -> None:
    """Writes a checkpoint's metrics, replacing earlier metrics.

    Raises:
      OSError: the file cannot be written.
    """
    numbers = {name: float(value) for name, value in metrics.items()}
    write_text(directory / METRICS, json.dumps(numbers, indent=1) + "\n")


def read_metrics(directory: Path) -> dict[str, float]:
    """Returns a checkpoint's metrics by name; {} if there are none.

    If the file is unreadable or damaged, logs a warning and returns {}.
    """
    path = directory / METRICS
    try:
        return read_json(path, dict[str, float], allow_infinite=True)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logging.warning("Skipping %s, which cannot be read: %s", path, error)
        return {}


def best_of(goal: BestMetric, directories: Mapping[int, Path]) -> tuple[int, float] | None:
    """Finds the best checkpoint; the oldest, if several are equally good.

    Returns:
      the step and the metric's value; None if no checkpoint has the metric.
    """
    best: tuple[int, float] | None = None
    for step, directory in sorted(directories.items()):
        value = read_metrics(directory).get(goal.metric, math.nan)
        if not math.isnan(value) and (best is None or goal.is_better(value, best[1])):
            best = step, value
    return best
