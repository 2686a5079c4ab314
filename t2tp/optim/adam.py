"""Adam and AdamW."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.optim.optimizer import Optimizer, Target, UpdateOperation, slot, subtract


@registry.register_optimizer
class Adam(Optimizer):
    """Adam; with `weight_decay` above 0, AdamW.

    D. Kingma and J. Ba, arXiv:1412.6980, algorithm 1; I. Loshchilov and F. Hutter,
    arXiv:1711.05101, algorithm 2.
    """

    def __init__(self, learning_rate: mtf.Tensor, hparams: HParams) -> None:
        """Reads the parameters of the paper, `optimizer_adam_...`."""
        super().__init__(learning_rate, hparams)
        self._beta1 = hparams.optimizer_adam_beta1
        self._beta2 = hparams.optimizer_adam_beta2
        self._epsilon = hparams.optimizer_adam_epsilon

    def updates(self, targets: Sequence[Target]) -> list[mtf.Operation]:
        """See the base class."""
        mesh = targets[0].var.mesh
        powers = [
            self.of_update_number(mesh, functools.partial(tf.pow, beta), "beta_power")
            for beta in (self._beta1, self._beta2)
        ]
        return [
            UpdateOperation(
                "adam",
                [var, slot(var, "adam_m"), slot(var, "adam_v")],
                [grad, rate, *powers],
                functools.partial(self._update, decay),
            )
            for var, grad, rate, decay in targets
        ]

    def _update(
        self,
        decay: float,
        var: tf.Variable,
        m: tf.Variable,
        v: tf.Variable,
        grad: tf.Tensor,
        rate: tf.Tensor,
        power1: tf.Tensor,
        power2: tf.Tensor,
    ) -> None:
        self.shrink(var, rate, decay)
        # Algorithm 1 adds epsilon to the root of the corrected v. The kernel adds its epsilon to
        # the root of v itself, so epsilon is multiplied by the correction of the root.
        correction = self.shared(("correction", power2.ref()), lambda: tf.sqrt(1.0 - power2))
        epsilon = self.shared(("epsilon", power2.ref()), lambda: self._epsilon * correction)
        if var.dtype == tf.float32:
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=power1,
                beta2_power=power2,
                lr=rate,
                beta1=self.constant(self._beta1),
                beta2=self.constant(self._beta2),
                epsilon=epsilon,
                grad=grad,
            )
            return
        m.assign(self._beta1 * m + (1.0 - self._beta1) * grad, read_value=False)
        v.assign(self._beta2 * v + (1.0 - self._beta2) * tf.square(grad), read_value=False)
        rate *= correction / (1.0 - power1)
        subtract(var, rate * m / (tf.sqrt(v) + epsilon))
