"""Optimizers, schedules and the training step: from a loss to updated variables.

`train_step` builds all of it: the loss and its gradients (over several microbatches if configured),
clipping, the learning rate, and the optimizer's update of each variable. An optimizer is a class
that is registered under a name, and called with the learning rate and the hparams. It creates one
`UpdateOperation` per variable, to update slices in place. An optimizer's *slots*, such as moments,
are float32 variables. A slot is named after its variable and has the variable's layout.

The updates are conditional, so a step with non-finite gradients or a spike of the loss is skipped
without a round trip to the host.
"""

from t2tp.optim import adafactor, adam, lion, muon, schedules, sgd  # noqa: F401  (they register themselves)
from t2tp.optim.ema import read_averages
from t2tp.optim.gradient_accumulation import sum_metrics
from t2tp.optim.train_step import TrainStep, apply_gradients, train_step

__all__ = ["TrainStep", "apply_gradients", "read_averages", "sum_metrics", "train_step"]
