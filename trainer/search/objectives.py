"""The metrics by which a search ranks its trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from t2tp.suggestions import nearest
from t2tp.trainer.errors import UsageError


@dataclass(frozen=True)
class Objective:
    """A metric and the direction in which it gets better.

    Attributes:
      metric: its name.
      minimize: whether a smaller value is better.
    """

    metric: str
    minimize: bool

    @classmethod
    def parse_all(cls, text: str, minimize: bool) -> list[Objective]:
        """Reads `METRIC`, `min:METRIC` or `max:METRIC`, or several with commas between them.

        Args:
          text: to read.
          minimize: the direction of a metric without `min:` or `max:`.

        Raises:
          UsageError: a metric has no name, or occurs twice.
        """
        objectives = []
        for part in text.split(","):
            kind, colon, metric = part.strip().partition(":")
            if not colon:
                kind, metric = ("min" if minimize else "max"), kind
            if kind not in ("min", "max") or not metric:
                raise UsageError(
                    f"--metric={text}: expected METRIC, min:METRIC or max:METRIC, or several with"
                    " commas between them"
                )
            objectives.append(cls(metric, kind == "min"))
        if len({each.metric for each in objectives}) < len(objectives):
            raise UsageError(f"--metric={text}: a metric occurs twice")
        return objectives

    def value_of(self, metrics: Mapping[str, float]) -> float:
        """Returns the metric's value.

        Raises:
          UsageError: it is not evaluated.
        """
        if self.metric not in metrics:
            raise UsageError(f"--metric={self.metric}: {nearest(self.metric, metrics, 'metrics')}")
        return metrics[self.metric]
