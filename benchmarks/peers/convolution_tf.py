"""A convolution block in plain TensorFlow, by hand. With --xla the whole step is compiled."""

from __future__ import annotations

import turn

args = turn.arguments()

import tensorflow as tf
from layer_sizes import CONVOLUTIONS, EPSILON, LEARNING_RATE, MOMENTUM

block = CONVOLUTIONS[args.size]
inputs, targets = (tf.constant(x) for x in block.data())
filters = {n: tf.Variable(v) for n, v in block.initial_values().items()}
weights = dict(filters)
averages = {}
for number in "12":
    weights[f"scale_{number}"] = tf.Variable(tf.ones([block.channels]))
    weights[f"offset_{number}"] = tf.Variable(tf.zeros([block.channels]))
    averages[number] = (
        tf.Variable(tf.zeros([block.channels])),
        tf.Variable(tf.ones([block.channels])),
    )


def normalized(x, number):
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=weights[f"scale_{number}"],
        offset=weights[f"offset_{number}"],
        mean=[],
        variance=[],
        epsilon=EPSILON,
    )
    for average, value in zip(averages[number], (mean, variance), strict=True):
        average.assign_add((1.0 - MOMENTUM) * (value - average))
    return y


def loss_fn():
    y = tf.nn.relu(normalized(tf.nn.conv2d(inputs, weights["conv_1"], 1, "SAME"), "1"))
    y = normalized(tf.nn.conv2d(y, weights["conv_2"], 1, "SAME"), "2")
    squares = tf.square(tf.nn.relu(inputs + y) - targets)
    # XLA adds sequentially: a single mean of two million numbers would lose four digits.
    return tf.reduce_mean(tf.reduce_mean(squares, [1, 2, 3]))


@tf.function(jit_compile=args.xla)
def train_step():
    with tf.GradientTape() as tape:
        loss = loss_fn()
    gradients = tape.gradient(loss, weights)
    for name, gradient in gradients.items():
        weights[name].assign_sub(LEARNING_RATE * gradient)
    return loss


turn.take_turns(lambda: float(train_step()), version=f"tensorflow {tf.__version__}")
