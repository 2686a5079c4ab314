"""Lion: sign-based updates with momentum."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.optim.optimizer import Optimizer, Target, UpdateOperation, slot, subtract


@registry.register_optimizer
class Lion(Optimizer):
    """Lion, which steps along the sign of its momentum.

    X. Chen et al., "Symbolic Discovery of Optimization Algorithms" (arXiv:2302.06675, program 1).

    Learning rates should be 3 to 10 times smaller than Adam's. The weight decay should be larger by
    the same factor.
    """

    def __init__(self, learning_rate: mtf.Tensor, hparams: HParams) -> None:
        """Reads the parameters of the paper, `optimizer_lion_...`."""
        super().__init__(learning_rate, hparams)
        self._beta1 = hparams.optimizer_lion_beta1
        self._beta2 = hparams.optimizer_lion_beta2

    def updates(self, targets: Sequence[Target]) -> list[mtf.Operation]:
        """See the base class."""
        return [
            UpdateOperation(
                "lion",
                [var, slot(var, "lion_m")],
                [grad, rate],
                functools.partial(self._update, decay),
            )
            for var, grad, rate, decay in targets
        ]

    def _update(
        self, decay: float, var: tf.Variable, m: tf.Variable, grad: tf.Tensor, rate: tf.Tensor
    ) -> None:
        self.shrink(var, rate, decay)
        subtract(var, rate * tf.sign(self._beta1 * m + (1.0 - self._beta1) * grad))
        m.assign(self._beta2 * m + (1.0 - self._beta2) * grad, read_value=False)
