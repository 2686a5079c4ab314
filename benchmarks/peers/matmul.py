"""Measures the machine's peak rate: TensorFlow's kernel multiplies two large matrices."""

from __future__ import annotations

import turn

args = turn.arguments()

import tensorflow as tf

SIZE = 2048
FLOPS = 2 * SIZE**3
x = tf.cast(tf.random.normal([SIZE, SIZE]), args.dtype)
multiply = tf.function(lambda x: tf.reduce_max(tf.matmul(x, x)))


def step() -> float:
    float(multiply(x))
    return 0.0


turn.take_turns(step, work=FLOPS, version=f"tensorflow {tf.__version__}")
