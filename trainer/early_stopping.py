"""Ends a training whose evaluations have stopped getting better."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from t2tp.nearest import nearest


@dataclass(frozen=True)
class EarlyStopping:
    """When a metric has reached its plateau, as tensor2tensor defines it.

    The metric is compared with its value at the last evaluation that lies at least `steps` back: if
    no evaluation since then was better than that one by `delta`, it has.

    It is a function of the evaluations that a run has on record, so that a run that was interrupted
    stops where an undisturbed one does.

    Attributes:
      steps: training steps in which the metric has to get better.
      metric: one that the problem's evaluations give.
      delta: by how much it has to get better, in the metric's own unit.
      minimize: whether a smaller value is better.
    """

    steps: int
    metric: str = "loss"
    delta: float = 0.1
    minimize: bool = True

    def __post_init__(self) -> None:
        """Refuses what cannot be meant.

        Raises:
          ValueError: `steps` is below 1, or `delta` below 0.
        """
        if self.steps < 1 or self.delta < 0:
            raise ValueError(
                f"early stopping after {self.steps} steps without a change of {self.delta}: the"
                " steps must be at least 1, and the change at least 0"
            )

    def check(self, metrics: Collection[str], evaluation_frequency: int) -> None:
        """Refuses what could never stop a training.

        Args:
          metrics: names of those that its evaluations give.
          evaluation_frequency: steps from one evaluation to the next; 0: there is only one.

        Raises:
          ValueError: there is no such metric, or only one evaluation.
        """
        if self.metric not in metrics:
            known = nearest(self.metric, metrics, "metrics of the problem")
            raise ValueError(f"early stopping by the unknown metric {self.metric!r}: {known}")
        if not evaluation_frequency:
            raise ValueError(
                "early stopping needs evaluations: local_eval_frequency is 0, and must be above"
            )

    def plateau(self, by_step: Mapping[int, Mapping[str, float]]) -> str:
        """Says since when the metric has not got better; "" if it has, or it is too early to tell.

        Args:
          by_step: training step -> metrics of its evaluation.
        """
        if not by_step:
            return ""
        last = max(by_step)
        old = [step for step in by_step if step <= last - self.steps]
        if not old:
            return ""
        reference = max(old)
        value = by_step[reference][self.metric]
        sign = 1 if self.minimize else -1
        since = [step for step in by_step if step >= reference]
        gains = [sign * (value - by_step[step][self.metric]) for step in since]
        if max(gains) >= self.delta:
            return ""
        return (
            f"{self.metric} was {value:.4f} at step {reference}, and has not got better by"
            f" {self.delta} since; at step {last} it is {by_step[last][self.metric]:.4f}"
        )
