"""The language model's training step in plain TensorFlow for one device, by hand.

Weights are tf.Variables, the gradient comes from a GradientTape, the loss is TensorFlow's fused
sparse cross-entropy, Adam is TensorFlow's fused update. With --xla the whole step is compiled.
"""

from __future__ import annotations

import turn

args = turn.arguments()

import language_model as lm
import tensorflow as tf

sizes = turn.sizes(args)
dtype = tf.as_dtype(args.dtype)
values = lm.initial_values(sizes)
for i in range(sizes.layers):  # One matmul computes q, k and v.
    qkv = [values.pop(f"{i}/{name}").reshape(sizes.d_model, -1) for name in "qkv"]
    values[f"{i}/qkv"] = tf.concat(qkv, 1).numpy()
    values[f"{i}/out"] = values[f"{i}/out"].reshape(-1, sizes.d_model)
weights = {name: tf.Variable(value) for name, value in values.items()}
m = {name: tf.Variable(tf.zeros_like(value)) for name, value in values.items()}
v = {name: tf.Variable(tf.zeros_like(value)) for name, value in values.items()}
steps_done = tf.Variable(0.0)
TARGETS = tf.constant(lm.targets(sizes))


def rms_norm(x, scale):
    with tf.name_scope("rms_norm"):
        x32 = tf.cast(x, tf.float32)
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(x32), -1, keepdims=True) + 1e-6)
        return tf.cast(x32 * inverse * scale, dtype)


def split_heads(t):
    t = tf.reshape(t, [sizes.batch, sizes.length, sizes.heads, sizes.d_kv])
    return tf.transpose(t, [0, 2, 1, 3])


def attend(q, k, v, mask):
    with tf.name_scope("attention"):
        logits = tf.cast(tf.matmul(q, k, transpose_b=True), tf.float32)
        attention = tf.cast(tf.nn.softmax(logits * sizes.d_kv**-0.5 + mask), dtype)
        return tf.transpose(tf.matmul(attention, v), [0, 2, 1, 3])


def cross_entropy(targets, logits):
    with tf.name_scope("cross_entropy"):
        logits = tf.cast(logits, tf.float32)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(targets, [-1]), logits)
        )


def update(gradients):
    with tf.name_scope("optimizer"):
        gradients, _ = tf.clip_by_global_norm(gradients, lm.CLIP_NORM)
        steps_done.assign_add(1.0)
        for name, gradient in zip(weights, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=weights[name].handle,
                m=m[name].handle,
                v=v[name].handle,
                beta1_power=lm.BETA1**steps_done,
                beta2_power=lm.BETA2**steps_done,
                lr=lm.LEARNING_RATE,
                beta1=lm.BETA1,
                beta2=lm.BETA2,
                epsilon=lm.EPSILON,
                grad=gradient,
            )


def loss_fn(targets):
    w = {name: tf.cast(value, dtype) for name, value in weights.items()}
    inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]])
    x = tf.gather(w["embedding"], inputs) + w["positions"]
    triangle = tf.linalg.band_part(tf.ones([sizes.length, sizes.length], tf.bool), -1, 0)
    mask = tf.where(triangle, 0.0, -1e9)
    for i in range(sizes.layers):
        y = rms_norm(x, weights[f"{i}/norm_1"])
        q, k, v = (split_heads(t) for t in tf.split(y @ w[f"{i}/qkv"], 3, axis=-1))
        attended = attend(q, k, v, mask)
        x += tf.reshape(attended, x.shape) @ w[f"{i}/out"]
        y = rms_norm(x, weights[f"{i}/norm_2"])
        x += tf.nn.relu(y @ w[f"{i}/up"]) @ w[f"{i}/down"]
    x = tf.reshape(rms_norm(x, weights["norm"]), [-1, sizes.d_model])
    return cross_entropy(targets, tf.matmul(x, w["embedding"], transpose_b=True))


@tf.function(jit_compile=args.xla)
def train_step(targets):
    with tf.GradientTape() as tape:
        loss = loss_fn(targets)
    gradients = tape.gradient(loss, list(weights.values()))
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    update(gradients)
    return loss


turn.take_turns(lambda: float(train_step(TARGETS)), version=f"tensorflow {tf.__version__}")
