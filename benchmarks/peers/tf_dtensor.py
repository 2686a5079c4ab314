"""The language model's training step in TensorFlow's DTensor, on a mesh of virtual CPU devices.

Layouts split each weight as Megatron does, and DTensor adds the collectives.
"""

from __future__ import annotations

import turn

args = turn.arguments()

import language_model as lm
import tensorflow as tf
from tensorflow.experimental import dtensor

sizes = turn.sizes(args)
dtype = tf.as_dtype(args.dtype)
count = args.data * args.model
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
# The devices share the cores equally, as in our engine.
tf.config.threading.set_intra_op_parallelism_threads(turn.share_of_cores(count))
dtensor.initialize_accelerator_system("CPU")
mesh = dtensor.create_mesh(
    [("data", args.data), ("model", args.model)], devices=[f"CPU:{i}" for i in range(count)]
)
NO = dtensor.UNSHARDED
LAYOUTS = {
    "embedding": ["model", NO],
    "positions": [NO, NO],
    "q": [NO, "model", NO],
    "k": [NO, "model", NO],
    "v": [NO, "model", NO],
    "out": ["model", NO, NO],
    "up": [NO, "model"],
    "down": ["model", NO],
}


def layout_of(name: str) -> dtensor.Layout:
    return dtensor.Layout(LAYOUTS.get(name.split("/")[-1], [NO]), mesh)


def placed(value, layout: dtensor.Layout) -> tf.Tensor:
    """Copies the full value to each device, and slices it there."""
    return dtensor.relayout(dtensor.copy_to_mesh(value, replicated(len(layout.shape))), layout)


def replicated(rank: int) -> dtensor.Layout:
    return dtensor.Layout.replicated(mesh, rank=rank)


weights = {
    name: dtensor.DVariable(placed(tf.constant(value), layout_of(name)))
    for name, value in lm.initial_values(sizes).items()
}
m, v = (
    {name: dtensor.DVariable(tf.zeros_like(value)) for name, value in weights.items()} for _ in "mv"
)
steps_done = dtensor.DVariable(dtensor.copy_to_mesh(tf.constant(0.0), replicated(0)))


def rms_norm(x, scale):
    x32 = tf.cast(x, tf.float32)
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(x32), -1, keepdims=True) + 1e-6)
    return tf.cast(x32 * inverse * scale, dtype)


def loss_fn(targets):
    # DTensor can gather rows of the variable's value, but not of a variable whose rows are split.
    w = {name: tf.cast(tf.identity(value), dtype) for name, value in weights.items()}
    inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]])
    x = tf.gather(w["embedding"], inputs) + w["positions"]
    triangle = tf.linalg.band_part(tf.ones([sizes.length, sizes.length]), -1, 0)
    mask = (1.0 - triangle) * -1e9
    for i in range(sizes.layers):
        y = rms_norm(x, weights[f"{i}/norm_1"])
        q, k, v = (tf.einsum("bld,dhk->bhlk", y, w[f"{i}/{name}"]) for name in "qkv")
        logits = tf.cast(tf.einsum("bhlk,bhmk->bhlm", q, k), tf.float32)
        attention = tf.cast(tf.nn.softmax(logits * sizes.d_kv**-0.5 + mask), dtype)
        attended = tf.einsum("bhlm,bhmk->bhlk", attention, v)
        x += tf.einsum("bhlk,hkd->bld", attended, w[f"{i}/out"])
        y = rms_norm(x, weights[f"{i}/norm_2"])
        x += tf.nn.relu(y @ w[f"{i}/up"]) @ w[f"{i}/down"]
    logits = tf.einsum("bld,vd->blv", rms_norm(x, weights["norm"]), w["embedding"])
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
    )


@tf.function
def train_step(targets):
    with tf.GradientTape() as tape:
        loss = loss_fn(targets)
    gradients = tape.gradient(loss, weights)
    gradients = {name: tf.convert_to_tensor(g) for name, g in gradients.items()}
    squares = tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients.values()])
    factor = lm.CLIP_NORM / tf.maximum(tf.sqrt(squares), lm.CLIP_NORM)
    step = steps_done + 1.0
    steps_done.assign(step)
    bias_1, bias_2 = (1.0 - beta**step for beta in (lm.BETA1, lm.BETA2))
    for name, gradient in gradients.items():
        gradient *= factor
        # On a mesh of two axes DTensor reads the old value of an assigned variable.
        new_m = lm.BETA1 * m[name] + (1 - lm.BETA1) * gradient
        new_v = lm.BETA2 * v[name] + (1 - lm.BETA2) * tf.square(gradient)
        m[name].assign(new_m)
        v[name].assign(new_v)
        update = (new_m / bias_1) / (tf.sqrt(new_v / bias_2) + lm.EPSILON)
        weights[name].assign_sub(lm.LEARNING_RATE * update)
    return loss


batch = placed(tf.constant(lm.targets(sizes)), dtensor.Layout(["data", NO], mesh))
turn.take_turns(lambda: float(train_step(batch)), version=f"tensorflow {tf.__version__}")
