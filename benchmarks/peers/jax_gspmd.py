"""The language model's training step in JAX: jit, and GSPMD shardings on a mesh.

Shardings split the weights as Megatron does, and XLA adds the collectives. With --sharded, weights
and optimizer state are also split over the devices that split the batch. The cross-entropy is
optax's fused one; the state is donated.
"""

from __future__ import annotations

import os

import turn

turn.PARSER.add_argument("--sharded", action="store_true", help="state, over --data")
args = turn.arguments()
devices = args.data * args.model
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

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
dtype = jnp.dtype(args.dtype)
mesh = Mesh(np.array(jax.devices()).reshape(args.data, args.model), ("data", "model"))
SPECS = {
    "embedding": P("model"),
    "q": P(None, "model"),
    "k": P(None, "model"),
    "v": P(None, "model"),
    "out": P("model"),
    "up": P(None, "model"),
    "down": P("model"),
}


VALUES = lm.initial_values(sizes)


def sharding(name: str) -> NamedSharding:
    spec, shape = SPECS.get(name.split("/")[-1], P()), VALUES[name].shape
    if args.sharded and len(shape) > 1:
        # The largest dimension that is not split yet and that `args.data` divides.
        parts = [*spec, *(None for _ in shape[len(spec) :])]
        free = [i for i, n in enumerate(shape) if parts[i] is None and n % args.data == 0]
        parts[max(free, key=shape.__getitem__)] = "data"
        spec = P(*parts)
    return NamedSharding(mesh, spec)


def rms_norm(x, scale):
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x32), -1, keepdims=True) + 1e-6)
    return (x32 * inverse * scale).astype(dtype)


def loss_fn(weights, targets):
    w = {name: value.astype(dtype) for name, value in weights.items()}
    inputs = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
    x = w["embedding"][inputs] + w["positions"]
    is_visible = jnp.tril(jnp.ones((sizes.length, sizes.length), bool))
    for i in range(sizes.layers):
        y = rms_norm(x, weights[f"{i}/norm_1"])
        q, k, v = (jnp.einsum("bld,dhk->bhlk", y, w[f"{i}/{name}"]) for name in "qkv")
        logits = jnp.einsum("bhlk,bhmk->bhlm", q, k).astype(jnp.float32) * sizes.d_kv**-0.5
        attention = jax.nn.softmax(jnp.where(is_visible, logits, -1e9)).astype(dtype)
        attended = jnp.einsum("bhlm,bhmk->bhlk", attention, v)
        x += jnp.einsum("bhlk,hkd->bld", attended, w[f"{i}/out"])
        y = rms_norm(x, weights[f"{i}/norm_2"])
        x += jax.nn.relu(y @ w[f"{i}/up"]) @ w[f"{i}/down"]
    x = rms_norm(x, weights["norm"])
    logits = jnp.einsum("bld,vd->blv", x, w["embedding"]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def kept_sharded(values):
    if not args.sharded:
        return values
    return {n: jax.lax.with_sharding_constraint(v, sharding(n)) for n, v in values.items()}


@jax.jit(donate_argnums=(0, 1))
def train_step(weights, state, targets):
    loss, gradients = jax.value_and_grad(loss_fn)(weights, targets)
    updates, state = optimizer.update(gradients, state)
    return loss, kept_sharded(optax.apply_updates(weights, updates)), state


weights = {n: jax.device_put(v, sharding(n)) for n, v in VALUES.items()}
state = jax.jit(optimizer.init)(weights)
targets = jax.device_put(lm.targets(sizes), NamedSharding(mesh, P("data")))


def step() -> float:
    global weights, state
    loss, weights, state = train_step(weights, state, targets)
    return float(loss)


turn.take_turns(step, version=f"jax {jax.__version__}")
