"""Nucleus sampling: only the smallest set of tokens with total probability p is sampled from.

No logits are gathered or sorted. Instead, four passes find the bits of the smallest logit in the
nucleus, eight bits (a digit) at a time. Each pass selects the logits that begin with the digits
found so far, and adds up their probabilities by the next digit.
"""

import tensorflow as tf

from t2tp.decoding.vocab_slice import VocabSlice

_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS
_SIGN = 1 << 31


def nucleus_mask(part: VocabSlice, logits: tf.Tensor, top_p: float) -> tf.Tensor:
    """Returns booleans [rows, part]: whether a vocabulary slice's tokens are in the nucleus.

    All tokens that share the nucleus's smallest logit are included.

    Args:
      part: the slice of the vocabulary.
      logits: float32 [rows, part], -infinity where a token must not be chosen.
      top_p: total probability of the nucleus, between 0 and 1.
    """
    highest = part.highest(tf.reduce_max(logits, -1, keepdims=True))
    weights = tf.exp(logits - highest)
    total = part.add_up(tf.reduce_sum(weights, -1))
    keys = _ordered(logits)
    prefix = tf.zeros_like(total, tf.int64)  # each row's digits found so far
    above = tf.zeros_like(total)  # the weight of all logits above those with this prefix
    for shift in (24, 16, 8, 0):
        has_prefix = tf.equal(_shifted(keys, shift + _DIGIT_BITS), prefix[:, None])
        digits = tf.cast(_shifted(keys, shift) % _DIGITS, tf.int32)
        by_digit = part.add_up(_sums(tf.where(has_prefix, weights, 0.0), digits))
        from_top = above[:, None] + tf.cumsum(by_digit, -1, reverse=True)
        # The largest digit that completes the nucleus; 0 if rounding errors leave none.
        is_full = from_top >= top_p * total[:, None]
        digit = tf.reduce_max(tf.where(is_full, tf.range(_DIGITS), 0), -1)
        weight = tf.gather(by_digit, digit, batch_dims=1)
        above = tf.gather(from_top, digit, batch_dims=1) - weight
        prefix = prefix * _DIGITS + tf.cast(digit, tf.int64)
    return (keys >= prefix[:, None]) & (weights > 0)


def _ordered(x: tf.Tensor) -> tf.Tensor:
    """Maps float32 to unsigned 32-bit integers in the same order, as int64."""
    bits = tf.cast(tf.bitcast(x, tf.uint32), tf.int64)
    return tf.where(bits >= _SIGN, 2 * _SIGN - 1 - bits, bits + _SIGN)


def _shifted(keys: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(keys, tf.constant(bits, tf.int64))


def _sums(weights: tf.Tensor, digits: tf.Tensor) -> tf.Tensor:
    """Adds up the weights of each row [rows, part] by digit: [rows, digits]."""
    rows = weights.shape[0]
    segments = digits + tf.range(rows)[:, None] * _DIGITS
    sums = tf.math.unsorted_segment_sum(
        tf.reshape(weights, [-1]), tf.reshape(segments, [-1]), rows * _DIGITS
    )
    return tf.reshape(sums, [rows, _DIGITS])
