"""A convolution block in JAX, jit."""

from __future__ import annotations

import turn

args = turn.arguments()

import jax
import jax.numpy as jnp
from layer_sizes import CONVOLUTIONS, EPSILON, LEARNING_RATE, MOMENTUM

block = CONVOLUTIONS[args.size]
inputs, targets = (jnp.asarray(x) for x in block.data())


def convolution(x, filters):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, filters, (1, 1), "SAME", dimension_numbers=numbers)


def normalized(x, scale, offset):
    mean = x.mean((0, 1, 2))
    variance = jnp.square(x).mean((0, 1, 2)) - jnp.square(mean)
    y = (x - mean) * (jax.lax.rsqrt(variance + EPSILON) * scale) + offset
    return y, (mean, variance)


def loss_fn(w):
    y, first = normalized(convolution(inputs, w["conv_1"]), w["scale_1"], w["offset_1"])
    y = convolution(jax.nn.relu(y), w["conv_2"])
    y, second = normalized(y, w["scale_2"], w["offset_2"])
    return jnp.mean(jnp.square(jax.nn.relu(inputs + y) - targets)), (first, second)


@jax.jit(donate_argnums=(0, 1))
def train_step(weights, averages):
    (loss, moments), gradients = jax.value_and_grad(loss_fn, has_aux=True)(weights)
    weights = {n: w - LEARNING_RATE * gradients[n] for n, w in weights.items()}
    averages = jax.tree.map(lambda a, m: a + (1 - MOMENTUM) * (m - a), averages, moments)
    return loss, weights, averages


weights = {n: jnp.asarray(v) for n, v in block.initial_values().items()}
for number in "12":
    weights[f"scale_{number}"] = jnp.ones(block.channels)
    weights[f"offset_{number}"] = jnp.zeros(block.channels)
averages = tuple((jnp.zeros(block.channels), jnp.ones(block.channels)) for _ in "12")


def step() -> float:
    global weights, averages
    loss, weights, averages = train_step(weights, averages)
    return float(loss)


turn.take_turns(step, version=f"jax {jax.__version__}")
