"""A mixture of experts in JAX.

A scatter writes tokens to the places of the experts, one batched matmul computes all experts, and a
gather reads the results.
"""

from __future__ import annotations

import turn

args = turn.arguments()

import jax
import jax.numpy as jnp
from layer_sizes import EXPERTS, LEARNING_RATE

layer = EXPERTS[args.size]
E, C = layer.experts, layer.capacity
inputs, targets = (jnp.asarray(x) for x in layer.data())


def choices(probabilities):
    """Returns the places [batch, length, 2] of both choices (E * C if dropped), and the gates."""
    _, experts = jax.lax.top_k(probabilities, 2)
    gates = jnp.take_along_axis(probabilities, experts, -1)
    gates = gates / gates.sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(experts, E, dtype=jnp.int32)  # [batch, length, 2, E]
    before = jnp.cumsum(chosen, 1) - chosen
    before = before.at[:, :, 1].add(chosen[:, :, 0].sum(1, keepdims=True))
    position = (before * chosen).sum(-1)
    return jnp.where(position < C, experts * C + position, E * C), gates


def loss_fn(weights):
    probabilities = jax.nn.softmax(inputs @ weights["router"])
    positions, gates = choices(probabilities)
    rows = jnp.arange(layer.batch)[:, None]
    sent = jnp.zeros([layer.batch, E * C + 1, layer.d_model])
    for k in range(2):
        sent = sent.at[rows, positions[:, :, k]].set(inputs)
    sent = sent[:, :-1].reshape(layer.batch, E, C, -1)
    hidden = jax.nn.relu(jnp.einsum("becd,edf->becf", sent, weights["up"]))
    outputs = jnp.einsum("becf,efd->becd", hidden, weights["down"]).reshape(layer.batch, E * C, -1)
    outputs = jnp.pad(outputs, ((0, 0), (0, 1), (0, 0)))
    y = sum(outputs[rows, positions[:, :, k]] * gates[:, :, k, None] for k in range(2))
    return jnp.mean(jnp.square(y - targets))


@jax.jit(donate_argnums=0)
def train_step(weights):
    loss, gradients = jax.value_and_grad(loss_fn)(weights)
    return loss, {n: w - LEARNING_RATE * gradients[n] for n, w in weights.items()}


weights = {name: jnp.asarray(value) for name, value in layer.initial_values().items()}


def step() -> float:
    global weights
    loss, weights = train_step(weights)
    return float(loss)


turn.take_turns(step, version=f"jax {jax.__version__}")
