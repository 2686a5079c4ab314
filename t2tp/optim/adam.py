"""Adam and AdamW."""

import functools
from typing import Any

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.optim.optimizer import Optimizer, subtract


@registry.register_optimizer
class Adam(Optimizer):
    """Adam; with `weight_decay` above 0, AdamW.

    D. Kingma and J. Ba, arXiv:1412.6980, algorithm 1; I. Loshchilov and F. Hutter,
    arXiv:1711.05101, algorithm 2.
    """

    name = "adam"
    slots = ("adam_m", "adam_v")

    def scalars(self, mesh: Mesh) -> list[mtf.Tensor]:
        """Returns beta1 and beta2 to the power of the update's number."""
        return [
            self.of_update_number(mesh, functools.partial(tf.pow, beta), "beta_power")
            for beta in (self.hparams.optimizer_adam_beta1, self.hparams.optimizer_adam_beta2)
        ]

    def move(self, rate: tf.Tensor, var: tf.Variable, *state: Any) -> None:
        """See the base class."""
        m, v, grad, power1, power2 = state
        beta1, beta2 = self.hparams.optimizer_adam_beta1, self.hparams.optimizer_adam_beta2
        # Algorithm 1 adds epsilon to the root of the corrected v. The kernel adds its epsilon to
        # the root of v itself, so epsilon is multiplied by the correction of the root.
        correction = self.shared(("correction", power2.ref()), lambda: tf.sqrt(1.0 - power2))
        least = self.hparams.optimizer_adam_epsilon
        epsilon = self.shared(("epsilon", power2.ref()), lambda: least * correction)
        if var.dtype == tf.float32:
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=power1,
                beta2_power=power2,
                lr=rate,
                beta1=self.constant(beta1),
                beta2=self.constant(beta2),
                epsilon=epsilon,
                grad=grad,
            )
            return
        m.assign(beta1 * m + (1.0 - beta1) * grad, read_value=False)
        v.assign(beta2 * v + (1.0 - beta2) * tf.square(grad), read_value=False)
        rate *= correction / (1.0 - power1)
        subtract(var, rate * m / (tf.sqrt(v) + epsilon))
