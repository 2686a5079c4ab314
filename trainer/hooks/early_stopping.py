"""Early stopping: ends a training whose evaluations no longer improve."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from t2tp.suggestions import check_known


@dataclass(frozen=True)
class EarlyStopping:
    """The condition that a metric has reached a plateau, as tensor2tensor defines it.

    The reference is the last evaluation that is at least `steps` training steps before the latest
    evaluation. The metric has reached a plateau if no evaluation after the reference is better by
    `delta`.

    The condition depends only on the recorded evaluations of a run, so an interrupted run stops at
    the same step as an uninterrupted run.

    Attributes:
      steps: training steps within which the metric must improve.
      metric: one of the problem's metrics.
      delta: min improvement, in the unit of the metric; 0: any improvement counts.
      minimize: whether a smaller value is better.
    """

    steps: int
    metric: str = "loss"
    delta: float = 0.1
    minimize: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError if `steps` is below 1, or `delta` below 0."""
        if self.steps < 1 or self.delta < 0:
            raise ValueError(
                f"early stopping after {self.steps} steps without a change of {self.delta}: the"
                " steps must be at least 1, and the change at least 0"
            )

    def check(self, metrics: Collection[str], evaluation_frequency: int) -> None:
        """Raises ValueError if the condition could never stop a training.

        `metrics` are evaluated every `evaluation_frequency` steps; 0: only once.
        """
        sentence = f"early stopping by the unknown metric {self.metric!r}"
        check_known(self.metric, metrics, "metrics of the problem", sentence)
        if not evaluation_frequency:
            raise ValueError(
                "early stopping needs evaluations: local_eval_frequency is 0, and must be above"
            )

    def plateau(self, by_step: Mapping[int, Mapping[str, float]]) -> str:
        """Describes the plateau in `by_step`, the metrics of each evaluation by training step.

        Returns "" if there is no plateau or it is too early to tell.
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
        since = [step for step in by_step if step > reference]
        # Improvements over the reference, positive if better.
        gain = max(sign * (value - by_step[step][self.metric]) for step in since)
        if gain > 0 and gain >= self.delta:
            return ""
        return (
            f"{self.metric} was {value:.4f} at step {reference}, and has not got better by"
            f" {self.delta} since; at step {last} it is {by_step[last][self.metric]:.4f}"
        )
