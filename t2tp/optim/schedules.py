"""Learning-rate schedules in tensor2tensor's language: a product of named factors.

`learning_rate_schedule="constant*linear_warmup*rsqrt_decay"` with `learning_rate_constant=2.0` is
twice the warm-up times the decay. A factor is a registered function of the step (a float32 scalar,
from 0), the hparams and the number of training steps.
"""

from __future__ import annotations

import math

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams


def learning_rate(step: mtf.Tensor, hparams: HParams, train_steps: int) -> mtf.Tensor:
    """The learning rate of a step.

    Args:
      step: integer scalar, from 0.
      hparams: `learning_rate_schedule` and what its factors read.
      train_steps: steps of the whole training; decays end there.

    Returns:
      a float32 scalar.

    Raises:
      UnknownNameError: the schedule names an unknown factor.
    """
    factors = [
        registry.learning_rate_schedule(name.strip())
        for name in hparams.learning_rate_schedule.split("*")
    ]

    def product(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rate = tf.constant(1.0)
        for factor in factors:
            rate *= factor(step, hparams, train_steps)
        return rate

    return mtf.slicewise(
        product, [step], output_dtype=tf.float32, splittable_dims=[], name="learning_rate"
    )


@registry.register_learning_rate_schedule
def constant(step: tf.Tensor, hparams: HParams, train_steps: int) -> float:
    """`learning_rate_constant`."""
    del step, train_steps
    return hparams.learning_rate_constant


@registry.register_learning_rate_schedule
def linear_warmup(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Rises to 1 over `learning_rate_warmup_steps`; the first step is not at zero."""
    del train_steps
    return tf.minimum(1.0, (step + 1.0) / max(1, hparams.learning_rate_warmup_steps))


@registry.register_learning_rate_schedule
def rsqrt_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """1 / sqrt(max(step, `learning_rate_warmup_steps`))."""
    del train_steps
    return tf.math.rsqrt(tf.maximum(step, max(1, hparams.learning_rate_warmup_steps)))


@registry.register_learning_rate_schedule
def linear_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Falls to 0 at the end of the training, over its last `learning_rate_decay_steps` (0: all)."""
    over = hparams.learning_rate_decay_steps or train_steps
    return tf.clip_by_value((train_steps - step) / over, 0.0, 1.0)


@registry.register_learning_rate_schedule
def cosine_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Falls from 1 to 0 along half a cosine over `learning_rate_decay_steps` (0: the whole
    training).

    I. Loshchilov and F. Hutter, "SGDR" (arXiv:1608.03983), equation 5, without restarts.
    """
    over = hparams.learning_rate_decay_steps or train_steps
    return 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(1.0, step / over)))
