"""Adam and AdamW, one fused update a variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.mesh.lowering import Lowering
from t2tp.mesh.program import Mesh


class Adam(mtf.optimize.Optimizer):
    """D. Kingma and J. Ba, "Adam" (arXiv:1412.6980), algorithm 1, in the form of the end of its
    section 2.

    With `weight_decay` it is AdamW (I. Loshchilov and F. Hutter, arXiv:1711.05101, algorithm 2):
    before the update a matrix (not a vector such as a scale) shrinks by `learning_rate *
    weight_decay` of itself. The moments are float32.
    """

    def __init__(
        self,
        learning_rate: mtf.Tensor,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Args as in the paper; `learning_rate` is a float32 scalar."""
        self._learning_rate = learning_rate
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._weight_decay = weight_decay

    def apply_grads(
        self, grads: Sequence[mtf.Tensor], variables: Sequence[mtf.Variable]
    ) -> list[mtf.Operation]:
        """Updates the variables; returns the operations that do."""
        powers = self._powers(variables[0].mesh) if variables else []
        return [self._update(grad, var, powers) for grad, var in zip(grads, variables, strict=True)]

    def apply_grad(self, grad: mtf.Tensor, var: mtf.Variable) -> list[mtf.Operation]:
        """Updates one variable and its moments."""
        return self.apply_grads([grad], [var])

    def _powers(self, mesh: Mesh) -> list[mtf.Tensor]:
        """The betas to the power of the number of updates, float32 scalars."""

        def power(beta: float) -> mtf.Tensor:
            return mtf.slicewise(
                lambda step: beta ** (tf.cast(step, tf.float32) + 1.0),
                [mesh.step],
                output_dtype=tf.float32,
                splittable_dims=[],
                grad_function=0,
                name="beta_power",
            )

        return [power(self._beta1), power(self._beta2)]

    def _update(
        self, grad: mtf.Tensor, var: mtf.Variable, powers: list[mtf.Tensor]
    ) -> mtf.Operation:
        moments = [
            mtf.get_variable(
                var.mesh,
                f"{var.name}/adam_{letter}",
                var.shape,
                dtype=tf.float32,
                initializer=tf1.zeros_initializer(),
                trainable=False,
            ).operation
            for letter in "mv"
        ]
        decay = self._weight_decay if var.shape.ndims > 1 else 0.0
        return AdamUpdateOperation(
            [var, *moments],
            [mtf.cast(grad, tf.float32), self._learning_rate, *powers],
            self._beta1,
            self._beta2,
            self._epsilon,
            decay,
        )


class AdamUpdateOperation(mtf.Assign):
    """Updates a variable and its two moments in place.

    Inputs: the gradient (of the variable's shape), the learning rate, and the betas to the power
      of the number of updates (scalars).
    """

    def __init__(
        self,
        variables: list[mtf.Variable],
        inputs: list[mtf.Tensor],
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
    ) -> None:
        super().__init__(variables, inputs, assign_fn=None, name="adam")
        self._betas = (beta1, beta2)
        self._epsilon = epsilon
        self._weight_decay = weight_decay

    def lower(self, lowering: Lowering) -> None:
        var, m, v = (lowering.variables[x].laid_out_tensor.slice for x in self.variables)
        grad, rate, power1, power2 = (lowering.slice(x) for x in self.inputs)
        beta1, beta2 = self._betas
        if self._weight_decay:
            shrink = tf.cast(rate * self._weight_decay, var.dtype)
            var.assign_sub(var * shrink, read_value=False)
        if var.dtype == tf.float32:
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=power1,
                beta2_power=power2,
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=self._epsilon,
                grad=grad,
            )
            return
        m.assign(beta1 * m + (1.0 - beta1) * grad, read_value=False)
        v.assign(beta2 * v + (1.0 - beta2) * tf.square(grad), read_value=False)
        rate *= tf.sqrt(1.0 - power2) / (1.0 - power1)
        update = rate * m / (tf.sqrt(v) + self._epsilon)
        var.assign_sub(tf.cast(update, var.dtype), read_value=False)


@registry.register_optimizer
def adam(learning_rate: mtf.Tensor, hparams: HParams) -> Adam:
    """Adam; with `weight_decay` above 0, AdamW."""
    return Adam(
        learning_rate,
        hparams.optimizer_adam_beta1,
        hparams.optimizer_adam_beta2,
        hparams.optimizer_adam_epsilon,
        hparams.weight_decay,
    )
