"""Moves and reduces dtypes that TensorFlow's collectives do not support.

A bfloat16 tensor is sent as float16 with the same bits, a complex tensor [...] as its real and
imaginary parts [..., 2], and small integers as int32. A reduction needs a dtype with the same
arithmetic: uint64 is reduced as int64, because their sums have the same bits.
"""

from collections.abc import Callable

import tensorflow as tf


def carrier_of(dtype: tf.DType) -> tf.DType:
    """Returns the carrier of a dtype: a supported dtype in which its tensors can be sent."""
    if dtype in (tf.float32, tf.float16, tf.float64, tf.int32, tf.int64):
        return dtype
    if dtype in (tf.uint32, tf.uint64):
        return tf.int32 if dtype == tf.uint32 else tf.int64
    if dtype in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16):
        return tf.int32
    if dtype == tf.bfloat16:
        return tf.float16
    if dtype.is_complex:
        return dtype.real_dtype
    raise ValueError(f"Tensors of dtype {dtype.name} cannot be moved between processors.")


def reduced_as(dtype: tf.DType) -> tf.DType:
    """Returns a dtype that TensorFlow's collectives can reduce, for tensors of `dtype`.

    A sum that overflows has the same low bits in both dtypes.
    """
    if dtype in (tf.int8, tf.uint8, tf.int16, tf.uint16):
        return tf.int32
    return tf.int64 if dtype == tf.uint32 else dtype


def as_int64(reduce: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, merge_op: str) -> tf.Tensor:
    """Reduces uint64 as int64.

    Sums have the same bits. For `Max` and `Min` the highest bit is flipped, which keeps the order.
    """
    highest_bit = tf.constant(0 if merge_op == "Add" else 1 << 63, tf.uint64)
    reduced = reduce(tf.bitcast(tf.bitwise.bitwise_xor(x, highest_bit), tf.int64))
    return tf.bitwise.bitwise_xor(tf.bitcast(reduced, tf.uint64), highest_bit)


def carried(move: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Moves a tensor in its carrier dtype."""
    carrier = carrier_of(x.dtype)
    if carrier.size == x.dtype.size or x.dtype.is_complex:
        return tf.bitcast(move(tf.bitcast(x, carrier)), x.dtype)
    return tf.cast(move(tf.cast(x, carrier)), x.dtype)
