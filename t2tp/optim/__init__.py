"""Optimizers and learning-rate schedules."""

from t2tp.optim import (  # noqa: F401  (they register themselves)
    adafactor,
    adam,
    lamb,
    lion,
    schedules,
    sgd,
)
from t2tp.optim.averages import read_averages
from t2tp.optim.training import TrainStep, apply_gradients, train_step

__all__ = ["TrainStep", "apply_gradients", "read_averages", "train_step"]
