"""Optimizers, schedules and the training step: from a loss to updated variables.

`train_step` builds it all: the loss and its gradients (over several microbatches if configured),
clipping by the global norm, the learning rate of the step, and the optimizer's update of each
variable. An optimizer is a class registered by its name and called with the learning rate and the
hparams; it creates one `UpdateOperation` per variable, which updates slices in place.
Its *slots* (moments, say) are float32 variables named after the variable and laid out like it, so
that they are split, saved and restored as it is.

Everything is part of the step's graph. A step whose gradients are not finite or whose loss spikes
is skipped without a round trip to the host, because the updates are conditional.
"""

from t2tp.optim import adafactor, adam, lion, muon, schedules, sgd  # noqa: F401  (they register themselves)
from t2tp.optim.ema import read_averages
from t2tp.optim.gradient_accumulation import sum_metrics
from t2tp.optim.train_step import TrainStep, apply_gradients, train_step

__all__ = ["TrainStep", "apply_gradients", "read_averages", "sum_metrics", "train_step"]
