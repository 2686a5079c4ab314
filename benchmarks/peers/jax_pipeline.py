"""The language model's training step in JAX, with its layers in stages: shard_map and ppermute.

A scan runs over ticks; in a tick, each device applies its layers to the message of the previous
device. jax.grad derives the backward pass, so all backward passes follow all forward passes, as in
GPipe. A device skips ticks without work; only the first device computes the embedding, and only the
last one the loss.
"""

from __future__ import annotations

import os

import turn

args = turn.arguments()
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={args.stages}"

import jax
import jax.numpy as jnp
import language_model as lm
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_optimizer import optimizer

turn.imported()
sizes = turn.sizes(args)
stages, count = args.stages, args.microbatches
mesh = Mesh(np.array(jax.devices()), ("stage",))
LAYER = ("norm_1", "q", "k", "v", "out", "norm_2", "up", "down")


def initial_weights():
    values = lm.initial_values(sizes)
    layers = {n: np.stack([values[f"{i}/{n}"] for i in range(sizes.layers)]) for n in LAYER}
    return {"layers": layers, **{n: values[n] for n in ("embedding", "positions", "norm")}}


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale


def layer(x, w):
    is_visible = jnp.tril(jnp.ones((sizes.length, sizes.length), bool))
    y = rms_norm(x, w["norm_1"])
    q, k, v = (jnp.einsum("bld,dhk->bhlk", y, w[name]) for name in "qkv")
    logits = jnp.einsum("bhlk,bhmk->bhlm", q, k) * sizes.d_kv**-0.5
    attention = jax.nn.softmax(jnp.where(is_visible, logits, -1e9))
    x += jnp.einsum("bhlk,hkd->bld", jnp.einsum("bhlm,bhmk->bhlk", attention, v), w["out"])
    return x + jax.nn.relu(rms_norm(x, w["norm_2"]) @ w["up"]) @ w["down"], None


def embed(weights, targets):
    inputs = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return weights["embedding"][inputs] + weights["positions"]


def loss_of(weights, x, targets):
    logits = jnp.einsum("bld,vd->blv", rms_norm(x, weights["norm"]), weights["embedding"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def varying(x):
    return jax.lax.pcast(x, ("stage",), to="varying")


def loss_on_device(weights, targets):
    """Returns this device's part of the loss of targets [microbatch, batch, length]."""
    stage = jax.lax.axis_index("stage")
    # The weights are cast to varying here, so that their gradients are summed here and not in a
    # branch that only some devices take.
    weights = {n: w if n == "layers" else varying(w) for n, w in weights.items()}
    targets = varying(targets)

    def tick(arrived, number):
        mine = number - stage
        part = targets[jnp.clip(mine, 0, count - 1)]

        def work():
            x = jax.lax.cond(stage == 0, lambda: embed(weights, part), lambda: arrived)
            x, _ = jax.lax.scan(layer, x, weights["layers"])
            loss = jax.lax.cond(
                stage == stages - 1, lambda: loss_of(weights, x, part), lambda: 0.0 * x[0, 0, 0]
            )
            return x, loss

        is_active = (mine >= 0) & (mine < count)
        x, loss = jax.lax.cond(is_active, work, lambda: (arrived, 0.0 * arrived[0, 0, 0]))
        return jax.lax.ppermute(x, "stage", [(i, i + 1) for i in range(stages - 1)]), loss

    start = varying(jnp.zeros((targets.shape[1], sizes.length, sizes.d_model)))
    _, losses = jax.lax.scan(tick, start, jnp.arange(count + stages - 1))
    return jax.lax.psum(losses.sum() / count, "stage")


specs = {"layers": {n: P("stage") for n in LAYER}, "embedding": P(), "positions": P(), "norm": P()}
loss_fn = jax.shard_map(loss_on_device, mesh=mesh, in_specs=(specs, P()), out_specs=P())


@jax.jit(donate_argnums=(0, 1))
def train_step(weights, state, targets):
    loss, gradients = jax.value_and_grad(loss_fn)(weights, targets)
    updates, state = optimizer.update(gradients, state)
    return loss, optax.apply_updates(weights, updates), state


weights = jax.tree.map(
    lambda value, spec: jax.device_put(value, NamedSharding(mesh, spec)), initial_weights(), specs
)
state = jax.jit(optimizer.init)(weights)
targets = lm.targets(sizes).reshape(count, -1, sizes.length)
targets = jax.device_put(targets, NamedSharding(mesh, P()))


def step() -> float:
    global weights, state
    loss, weights, state = train_step(weights, state, targets)
    return float(loss)


turn.take_turns(step, version=f"jax {jax.__version__}")
