"""Lion: sign-based updates with momentum."""

from typing import Any

import tensorflow as tf

from t2tp import registry
from t2tp.optim.optimizer import Optimizer, subtract


@registry.register_optimizer
class Lion(Optimizer):
    """Lion, which steps along the sign of its momentum.

    X. Chen et al., "Symbolic Discovery of Optimization Algorithms" (arXiv:2302.06675, program 1).

    Learning rates should be 3 to 10 times smaller than Adam's. The weight decay should be larger by
    the same factor.
    """

    name = "lion"
    slots = ("lion_m",)

    def move(self, rate: tf.Tensor, var: tf.Variable, *state: Any) -> None:
        """See the base class."""
        m, grad = state
        beta1, beta2 = self.hparams.optimizer_lion_beta1, self.hparams.optimizer_lion_beta2
        subtract(var, rate * tf.sign(beta1 * m + (1.0 - beta1) * grad))
        m.assign(beta2 * m + (1.0 - beta2) * grad, read_value=False)
