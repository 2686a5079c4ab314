"""Optimizers and learning-rate schedules."""

from t2tp.optim import adafactor, adam, schedules, sgd  # noqa: F401  (they register themselves)
from t2tp.optim.training import apply_gradients

__all__ = ["apply_gradients"]
