"""Measures the device's rate of bfloat16 matmuls compiled by XLA. MFU is relative to this rate."""

from __future__ import annotations

import peer

peer.PARSER.add_argument("--size", type=int, default=512)
args = peer.arguments()

import tensorflow as tf

PRODUCTS = 8
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
a, b = (tf.cast(tf.random.normal([args.size, args.size]), tf.bfloat16) for _ in range(2))


@tf.function(jit_compile=True)
def products(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    for _ in range(PRODUCTS):
        a = tf.matmul(a, b) * (1.0 / args.size) ** 0.5
    return tf.reduce_sum(tf.cast(a, tf.float32))


def step() -> float:
    return float(products(a, b))


flops = PRODUCTS * 2 * args.size**3
peer.measure(step, args.steps, 1, lambda: 0, flops=flops, version=f"tensorflow {tf.__version__}")
