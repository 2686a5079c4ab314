"""Skips non-finite and spiking steps: the variables do not change, and the step is counted."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.hparam import HParams
from t2tp.optim.optimizer import step_variable


def finite(tensors: Sequence[mtf.Tensor]) -> mtf.Tensor:
    """Returns whether all scalars are finite, a boolean scalar."""

    def all_finite(*values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_all([tf.math.is_finite(value) for value in values])

    return mtf.cwise(all_finite, list(tensors), tf.bool, grad_function=0, name="is_finite")


SKIPPED_STEPS = "step_guard/skipped_steps"


def count_skipped_steps(mesh: Mesh, is_good: mtf.Tensor) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Counts skipped steps, in the variable `step_guard/skipped_steps`.

    Without this variable in a checkpoint, the count starts at 0. `is_good` is a boolean scalar:
    whether to execute the step.

    Returns:
      float32 scalars: the number of skipped steps, including this step if it is skipped; and the
      number, from 1, that this update has if it is executed.
    """
    before = step_variable(mesh, SKIPPED_STEPS)
    # Must precede the assignment: later reads return the assigned value.
    update_number = mtf.cast(mesh.step, tf.float32) + 1.0 - before
    total = before + mtf.cast(mtf.logical_not(is_good), tf.float32)
    mtf.assign(before, total)
    return total, update_number


def conditions_of_step(
    loss: mtf.Tensor, norm: mtf.Tensor, is_finite: mtf.Tensor, hparams: HParams
) -> list[mtf.Tensor]:
    """Returns the conditions under which to execute a step, boolean scalars. All must be true.

    With `on_nonfinite=skip` a step is skipped if its loss or the norm of its gradients (a
    float32 scalar) is infinite or NaN. With `skip_step_sigma` above 0 a step is skipped if its loss
    or norm is more than `skip_step_sigma` standard deviations above the mean over the last
    `skip_step_window` steps. At least half of these steps must be recorded. A step that is skipped
    because of a spike is recorded too, so that a lasting change is accepted. A non-finite step is
    never recorded.

    Checkpoints include the recorded values, in the variables `step_guard/...`.
    """
    conditions = [is_finite] if hparams.on_nonfinite == "skip" else []
    if not hparams.skip_step_sigma:
        return conditions
    mesh, window, sigma = loss.mesh, hparams.skip_step_window, hparams.skip_step_sigma
    count = step_variable(mesh, "step_guard/count")
    ring = mtf.Shape([mtf.Dimension("step_guard_window", window)])
    for name, value in (("losses", mtf.cast(loss, tf.float32)), ("gradient_norms", norm)):
        last = step_variable(mesh, f"step_guard/{name}", 0.0, ring)

        def is_usual(value: tf.Tensor, last: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
            known = tf.cast(tf.range(window, dtype=tf.float32) < count, tf.float32)
            number = tf.maximum(tf.reduce_sum(known), 1.0)
            mean = tf.reduce_sum(last * known) / number
            variance = tf.reduce_sum(tf.square(last - mean) * known) / number
            return (count < window // 2) | ~(value > mean + sigma * tf.sqrt(variance))

        def written(
            last: tf.Tensor, count: tf.Tensor, value: tf.Tensor, finite: tf.Tensor
        ) -> tf.Tensor:
            # A ring buffer: the new value replaces the oldest.
            place = tf.equal(tf.range(window, dtype=tf.float32), tf.math.mod(count, window))
            return tf.where(place & finite, value, last)

        inputs = [value, last, count]
        conditions.append(
            mtf.slicewise(is_usual, inputs, output_dtype=tf.bool, grad_function=0, name="is_usual")
        )
        inputs = [last, count, value, is_finite]
        mtf.assign(last, mtf.slicewise(written, inputs, grad_function=0, name="written"))
    mtf.assign(count, count + mtf.cast(is_finite, tf.float32))
    return conditions


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
        self.value = step_variable(mesh, "loss_scale/value", _FIRST_SCALE)
        self._good_steps = step_variable(mesh, "loss_scale/good_steps")

    def update(self, is_finite: mtf.Tensor) -> list[mtf.Operation]:
        """Returns the operations that set the next step's factor; `is_finite` is a boolean."""

        def next_value(value: tf.Tensor, good: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
            grown = tf.where(good + 1.0 >= _STEPS_TO_GROW, 2.0 * value, value)
            return tf.where(finite, grown, tf.maximum(0.5 * value, 1.0))

        def next_count(good: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
            return tf.where(finite & (good + 1.0 < _STEPS_TO_GROW), good + 1.0, 0.0)

        inputs = [self.value, self._good_steps, is_finite]
        value = mtf.cwise(next_value, inputs, tf.float32, name="next_loss_scale")
        good_steps = mtf.cwise(next_count, inputs[1:], tf.float32, name="next_good_steps")
        return [mtf.assign(self.value, value), mtf.assign(self._good_steps, good_steps)]
