"""`BestMetric`: compares checkpoints by a metric of their evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from t2tp.suggestions import check_known


@dataclass(frozen=True)
class BestMetric:
    """The criterion of the best checkpoint: a metric, and whether smaller values are better."""

    metric: str
    is_min: bool

    @classmethod
    def parse(cls, text: str) -> BestMetric:
        """Reads `min:METRIC` or `max:METRIC`.

        Raises:
          ValueError: the text has neither form.
        """
        kind, _, metric = text.partition(":")
        if kind not in ("min", "max") or not metric:
            raise ValueError(
                f"{text!r} is no goal: write min:METRIC or max:METRIC, as in max:accuracy"
            )
        return cls(metric, kind == "min")

    def value_of(self, metrics: Mapping[str, float]) -> float:
        """Returns the metric's value, or raises LookupError."""
        sentence = f"{self.metric!r} is not evaluated"
        check_known(self.metric, metrics, "metrics", sentence, LookupError)
        return metrics[self.metric]

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another; False for NaN."""
        return value < than if self.is_min else value > than
