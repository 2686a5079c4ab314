"""`EvalConfig`: when a run is evaluated, and on which split."""

from dataclasses import dataclass
from typing import Any

from t2tp.problems.problem import Problem
from t2tp.trainer.hooks.early_stopping import EarlyStopping


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

    eval_steps: int = -1
    local_eval_frequency: int = 1000
    eval_split: str = "validation"
    eval_timeout_mins: float = 240.0
    eval_samples: int = 0
    early_stopping: EarlyStopping | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a number is out of range."""
        least = {"eval_steps": -1, "local_eval_frequency": 0, "eval_samples": 0}
        for name, bound in (least | {"eval_timeout_mins": 0}).items():
            if not getattr(self, name) >= bound:  # Also true for NaN.
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least {bound}")

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
