"""GPT-2's training step in JAX: jit, cuDNN's fused attention, donated state."""

from __future__ import annotations

import peer

args = peer.arguments()

import gpt
import jax
import jax.numpy as jnp
import optax

sizes = gpt.MODELS[args.model]
device = jax.devices()[0]
IMPLEMENTATION = "cudnn" if device.platform == "gpu" else "xla"
BF16 = jnp.bfloat16


def layer_norm(x, scale, bias):
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(variance + gpt.NORM_EPSILON) * scale + bias).astype(BF16)


def loss_fn(weights, targets):
    w = {name: value.astype(BF16) for name, value in weights.items()}
    inputs = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
    x = w["embedding"][inputs] + w["positions"]
    for i in range(sizes.layers):
        y = layer_norm(x, weights[f"{i}/scale_1"], weights[f"{i}/bias_1"])
        q, k, v = (
            jnp.einsum("bld,dhk->blhk", y, w[f"{i}/{n}"]) + w[f"{i}/{n}_bias"] for n in "qkv"
        )
        attended = jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=IMPLEMENTATION
        )
        x += jnp.einsum("blhk,hkd->bld", attended, w[f"{i}/out"]) + w[f"{i}/out_bias"]
        y = layer_norm(x, weights[f"{i}/scale_2"], weights[f"{i}/bias_2"])
        hidden = jax.nn.gelu(y @ w[f"{i}/up"] + w[f"{i}/up_bias"], approximate=True)
        x += hidden @ w[f"{i}/down"] + w[f"{i}/down_bias"]
    x = layer_norm(x, weights["scale"], weights["bias"])
    logits = jnp.einsum("bld,vd->blv", x, w["embedding"]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def initial_weights() -> dict[str, jax.Array]:
    d, heads = sizes.d_model, (sizes.heads, sizes.d_kv)
    weights = {
        name: gpt.initial_value(name, shape)
        for name, shape in gpt.weight_shapes(sizes, args.length).items()
    }
    weights |= {"scale": jnp.ones(d), "bias": jnp.zeros(d)}
    for i in range(sizes.layers):
        weights |= {f"{i}/scale_{n}": jnp.ones(d) for n in (1, 2)}
        weights |= {f"{i}/bias_{n}": jnp.zeros(d) for n in (1, 2)}
        weights |= {f"{i}/{n}_bias": jnp.zeros(heads) for n in "qkv"}
        weights |= {f"{i}/{n}_bias": jnp.zeros(d) for n in ("out", "down")}
        weights[f"{i}/up_bias"] = jnp.zeros(sizes.d_ff)
    return {name: jnp.asarray(value, jnp.float32) for name, value in weights.items()}


optimizer = optax.chain(
    optax.clip_by_global_norm(gpt.CLIP_NORM),
    optax.adamw(
        gpt.LEARNING_RATE,
        gpt.BETA1,
        gpt.BETA2,
        gpt.EPSILON,
        weight_decay=gpt.WEIGHT_DECAY,
        mask=lambda weights: {n: n in gpt.weight_shapes(sizes, args.length) for n in weights},
    ),
)


@jax.jit(donate_argnums=(0, 1))
def train_step(weights, state, targets):
    loss, gradients = jax.value_and_grad(loss_fn)(weights, targets)
    updates, state = optimizer.update(gradients, state, weights)
    return loss, optax.apply_updates(weights, updates), state


weights = initial_weights()
state = jax.jit(optimizer.init)(weights)
targets = jnp.asarray(gpt.targets(sizes, args.batch, args.length))


def step() -> jax.Array:
    global weights, state
    loss, weights, state = train_step(weights, state, targets)
    return loss


def peak_bytes() -> int:
    return (device.memory_stats() or {}).get("peak_bytes_in_use", 0)


peer.measure(
    step, args.steps, args.batch * args.length, peak_bytes, version=f"jax {jax.__version__}"
)
