"""Learning-rate schedules in tensor2tensor's syntax: a product of named factors.

`learning_rate_schedule="constant*linear_warmup*rsqrt_decay"` with `learning_rate_constant=2.0` is
2 times the warm-up times the decay. A factor is a registered function of the step (a float32
scalar, from 0), the hparams and the number of training steps.

A float32 represents integers up to 2**24 = 16.7 million exactly. Factors subtract integers before
they divide, so that small learning rates stay precise at the end of long trainings.
"""

import math

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.transfer import Transfer
from t2tp.hparam import HParams


def learning_rate(step: mtf.Tensor, hparams: HParams, train_steps: int) -> mtf.Tensor:
    """Computes the learning rate of a step.

    Args:
      step: integer scalar, from 0.
      hparams: `learning_rate_schedule` and the hparams of its factors.
      train_steps: steps of the training, from which some factors derive their length.

    Returns:
      a float32 scalar.

    Raises:
      UnknownNameError: the schedule names an unknown factor.
      ValueError: an hparam of a factor is invalid.
    """

    def product(step: tf.Tensor) -> tf.Tensor:
        return rate_at(step, hparams, train_steps)

    # Raises errors of factors now; lowering would raise them only later.
    with tf.Graph().as_default():
        product(tf.zeros([], tf.int32))
    return mtf.cwise(product, [step], tf.float32, name="learning_rate")


def rate_at(step: tf.Tensor | int, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Computes the learning rate of a step like `learning_rate`, outside of a graph."""
    step, rate = tf.cast(step, tf.float32), tf.constant(1.0)
    for name in hparams.learning_rate_schedule.split("*"):
        rate *= registry.learning_rate_schedule(name.strip())(step, hparams, train_steps)
    return rate


def warmup_steps(hparams: HParams, train_steps: int) -> int:
    """Returns `learning_rate_warmup_steps`, or for a short training a tenth of its steps.

    A training is short if it has less than twice `learning_rate_warmup_steps` steps, such as a
    fine-tuning with the hparams of a long training.
    """
    steps = hparams.learning_rate_warmup_steps
    return steps if 2 * steps <= train_steps else max(1, train_steps // 10)


@registry.register_learning_rate_schedule
def constant(step: tf.Tensor, hparams: HParams, train_steps: int) -> float:
    """Returns `learning_rate_constant`."""
    del step, train_steps
    return hparams.learning_rate_constant


@registry.register_learning_rate_schedule
def linear_warmup(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Rises linearly to 1 over `warmup_steps`; the value in the first step is above 0."""
    return tf.minimum(1.0, (step + 1.0) / max(1, warmup_steps(hparams, train_steps)))


@registry.register_learning_rate_schedule
def rsqrt_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Returns 1 / sqrt(max(step, `learning_rate_warmup_steps`)).

    The function uses this hparam even if `warmup_steps` returns fewer steps.
    """
    del train_steps
    return tf.math.rsqrt(tf.maximum(step, max(1, hparams.learning_rate_warmup_steps)))


@registry.register_learning_rate_schedule
def rsqrt_normalized_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Returns `rsqrt_decay`, scaled to begin at 1."""
    warmup = max(1, hparams.learning_rate_warmup_steps)
    return math.sqrt(warmup) * rsqrt_decay(step, hparams, train_steps)


@registry.register_learning_rate_schedule
def rsqrt_hidden_size(step: tf.Tensor, hparams: HParams, train_steps: int) -> float:
    """Returns 1 / sqrt(`d_model`). If `transfer_from` names an hparams set, uses its `d_model`."""
    del step, train_steps
    transfer = Transfer.from_hparams(hparams)
    return (hparams if transfer is None else transfer.small).d_model ** -0.5


@registry.register_learning_rate_schedule
def relative_step(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Returns min(0.01, 1 / sqrt(step + 1)), Adafactor's default (arXiv:1804.04235, section 9)."""
    del hparams, train_steps
    return tf.minimum(0.01, tf.math.rsqrt(step + 1.0))


@registry.register_learning_rate_schedule
def linear_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Falls linearly to `learning_rate_decay_floor` at the end of the training.

    The decay takes the last `learning_rate_decay_steps` steps or, if this hparam is 0, the last
    `learning_rate_decay_fraction` of the training.
    """
    return _above_floor(_left_at_the_end(step, hparams, train_steps), hparams)


@registry.register_learning_rate_schedule
def sqrt_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Falls as 1 - sqrt(progress), over the same steps as `linear_decay`.

    With a warm-up, this is the schedule "warm-up, stable, decay" (WSD). A. Hägele et al., "Scaling
    Laws and Compute-Optimal Training Beyond Fixed Training Durations" (arXiv:2405.18392), equation
    1.
    """
    left = _left_at_the_end(step, hparams, train_steps)
    # Equals 1 - sqrt(1 - left) without cancellation at the end.
    return _above_floor(left / (1.0 + tf.sqrt(1.0 - left)), hparams)


@registry.register_learning_rate_schedule
def cosine_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Falls from 1 to `learning_rate_decay_floor` along half a cosine.

    The decay takes `learning_rate_decay_steps` (0: the whole training).

    I. Loshchilov and F. Hutter, "SGDR" (arXiv:1608.03983), equation 5, without restarts.
    """
    over = hparams.learning_rate_decay_steps or train_steps
    return _above_floor(_half_cosine(tf.minimum(step, over), over), hparams)


@registry.register_learning_rate_schedule
def cosdecay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Returns tensor2tensor's cosine, which differs from `cosine_decay`.

    The factor is 1 during the warm-up and then (1 + cos(pi * step / `learning_rate_decay_steps`)) /
    2, with steps counted from the start of the training. After the decay the factor rises again.
    """
    decayed = _half_cosine(step, _decay_steps("cosdecay", hparams))
    return tf.where(step <= warmup_steps(hparams, train_steps), 1.0, decayed)


@registry.register_learning_rate_schedule
def single_cycle_cos_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Falls along half a cosine from 1 at the warm-up's end to 0 at the training's end."""
    warmup = warmup_steps(hparams, train_steps)
    over = max(1, train_steps - warmup)
    return _half_cosine(tf.clip_by_value(step - warmup, 0.0, over), over)


@registry.register_learning_rate_schedule
def multi_cycle_cos_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Oscillates along a cosine between 1 and 0 after the warm-up.

    Each half of a cycle takes `learning_rate_decay_steps`.
    """
    over = _decay_steps("multi_cycle_cos_decay", hparams)
    since = tf.maximum(step - warmup_steps(hparams, train_steps), 0.0)
    return _half_cosine(tf.math.mod(since, 2.0 * over), over)


@registry.register_learning_rate_schedule
def exp_decay(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Decays exponentially after the warm-up.

    The value is multiplied by `learning_rate_decay_rate` every `learning_rate_decay_steps`. With
    `learning_rate_decay_staircase`, the value changes only at the end of each interval.
    """
    over = _decay_steps("exp_decay", hparams)
    times = tf.maximum(step - warmup_steps(hparams, train_steps), 0.0) / over
    if hparams.learning_rate_decay_staircase:
        times = tf.floor(times)
    return tf.pow(hparams.learning_rate_decay_rate, times)


@registry.register_learning_rate_schedule
def piecewise(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Returns 1 up to the first of `learning_rate_boundaries`, inclusive.

    After a boundary it returns the boundary's entry of `learning_rate_multiples`, up to the next
    boundary. Multiples are relative to 1 and not to the previous multiple.
    """
    del train_steps
    boundaries, multiples = hparams.learning_rate_boundaries, hparams.learning_rate_multiples
    if len(boundaries) != len(multiples) or sorted(set(boundaries)) != boundaries:
        raise ValueError(
            f"piecewise needs ascending learning_rate_boundaries, not {boundaries}, and the same"
            f" number of learning_rate_multiples, not {multiples}"
        )
    place = tf.reduce_sum(tf.cast(step > tf.constant(boundaries, tf.float32), tf.int32))
    return tf.gather(tf.constant([1.0, *multiples], tf.float32), place)


def _left_at_the_end(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor:
    """Returns the fraction of the decay that remains: 1 before the decay, 0 after the training."""
    fraction = hparams.learning_rate_decay_fraction
    over = hparams.learning_rate_decay_steps or max(1.0, fraction * train_steps)
    return tf.clip_by_value((train_steps - step) / over, 0.0, 1.0)


def _half_cosine(step: tf.Tensor, over: int) -> tf.Tensor:
    """Returns (1 + cos(pi * step / over)) / 2, without its cancellation at step = over."""
    return tf.square(tf.sin(0.5 * math.pi * ((over - step) / over)))


def _above_floor(decay: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Rescales a decay from [0, 1] to [floor, 1]."""
    floor = hparams.learning_rate_decay_floor
    return floor + (1.0 - floor) * decay if floor else decay


def _decay_steps(name: str, hparams: HParams) -> int:
    if hparams.learning_rate_decay_steps < 1:
        raise ValueError(f"{name} needs learning_rate_decay_steps, which are 0: set them")
    return hparams.learning_rate_decay_steps
