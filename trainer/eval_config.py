"""`EvalConfig`: when a run is evaluated, on which split, and when it stops early."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from t2tp.argument_types import checked
from t2tp.hparam_limits import Limits
from t2tp.problems.problem import Problem
from t2tp.suggestions import check_known


@checked
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

    steps: Annotated[int, Limits(min=1)]
    metric: str = "loss"
    delta: Annotated[float, Limits(min=0)] = 0.1
    minimize: bool = True

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


@checked
@dataclass(frozen=True)
class EvalConfig:
    """When a run is evaluated, and on which split.

    Attributes:
      eval_steps: batches per evaluation; 0 or -1: all.
      local_eval_frequency: steps between evaluations; 0: evaluate only at the end.
      eval_split: the split to evaluate on.
      eval_timeout_mins: how many minutes `continuous_eval` waits for the next checkpoint.
      eval_samples: number of examples decoded at each evaluation, for TensorBoard.
      early_stopping: condition to end the training early; None: none.
    """

    eval_steps: Annotated[int, Limits(min=-1)] = -1
    local_eval_frequency: Annotated[int, Limits(min=0, max=math.inf)] = 1000
    eval_split: str = "validation"
    eval_timeout_mins: Annotated[float, Limits(min=0, max=math.inf)] = 240.0
    eval_samples: Annotated[int, Limits(min=0)] = 0
    early_stopping: EarlyStopping | None = None

    def check(self, problem: Problem) -> None:
        """Raises ValueError if the problem has no such split, or early stopping cannot stop."""
        problem.check_split(self.eval_split)
        if self.early_stopping is not None:
            self.early_stopping.check(problem.metric_names, self.local_eval_frequency)

    def flags(self) -> dict[str, Any]:
        """Returns the flags with which t2tp_trainer evaluates in this way while it trains."""
        flags: dict[str, Any] = {
            "eval_steps": self.eval_steps,
            "local_eval_frequency": self.local_eval_frequency,
        }
        return flags | ({"eval_use_test_set": True} if self.eval_split == "test" else {})
