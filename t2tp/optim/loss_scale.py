"""Dynamic loss scaling for float16."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import Mesh

_FIRST_SCALE = 2.0**15
_STEPS_TO_GROW = 2000


class LossScale:
    """A factor of the loss that keeps small gradients from underflowing in float16.

    When a gradient overflows, the step is skipped and the factor is halved. After 2000 steps
    without an overflow the factor is doubled (P. Micikevicius et al., "Mixed Precision Training",
    arXiv:1710.03740, section 3.2).
    """

    def __init__(self, mesh: Mesh) -> None:
        """Creates the variables `loss_scale/value` and `loss_scale/good_steps`."""
        self.value = self._variable(mesh, "value", _FIRST_SCALE)
        self._good_steps = self._variable(mesh, "good_steps", 0.0)

    def update(self, is_finite: mtf.Tensor) -> list[mtf.Operation]:
        """Returns the operations that set the next step's factor; `is_finite` is a boolean."""

        def next_value(value: tf.Tensor, good: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
            grown = tf.where(good + 1.0 >= _STEPS_TO_GROW, 2.0 * value, value)
            return tf.where(finite, grown, tf.maximum(0.5 * value, 1.0))

        def next_count(good: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
            return tf.where(finite & (good + 1.0 < _STEPS_TO_GROW), good + 1.0, 0.0)

        value = mtf.slicewise(
            next_value,
            [self.value, self._good_steps, is_finite],
            output_dtype=tf.float32,
            splittable_dims=[],
            name="next_loss_scale",
        )
        good_steps = mtf.slicewise(
            next_count,
            [self._good_steps, is_finite],
            output_dtype=tf.float32,
            splittable_dims=[],
            name="next_good_steps",
        )
        return [mtf.assign(self.value, value), mtf.assign(self._good_steps, good_steps)]

    @staticmethod
    def _variable(mesh: Mesh, name: str, value: float) -> mtf.Tensor:
        return mtf.get_variable(
            mesh,
            f"loss_scale/{name}",
            mtf.Shape([]),
            initializer=tf1.constant_initializer(value),
            trainable=False,
        )
