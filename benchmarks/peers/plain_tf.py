"""The language model's training step in plain TensorFlow for one device, by hand.

Weights are tf.Variables, the gradient comes from a GradientTape, the loss is TensorFlow's fused
sparse cross-entropy, Adam is TensorFlow's fused update. `jit_compile=True` compiles the whole step
with XLA.
"""

from __future__ import annotations

import math

import tensorflow as tf


class LanguageModel:
    """Pre-norm decoder: RMS norms, learned positions, ReLU, output tied to the embedding."""

    def __init__(self, d_model, heads, d_ff, layers, vocab, length, dtype=tf.float32):
        self.heads, self.dtype = heads, dtype
        self.weights = []

        def weight(*shape, scale=0.02):
            self.weights.append(tf.Variable(tf.random.normal(shape) * scale))
            return self.weights[-1]

        def ones(n):
            self.weights.append(tf.Variable(tf.ones([n])))
            return self.weights[-1]

        self.embedding = weight(vocab, d_model)
        self.positions = weight(length, d_model)
        self.layers = [
            {
                "norm_1": ones(d_model),
                "qkv": weight(d_model, 3 * d_model, scale=d_model**-0.5),
                "out": weight(d_model, d_model, scale=d_model**-0.5),
                "norm_2": ones(d_model),
                "up": weight(d_model, d_ff, scale=d_model**-0.5),
                "down": weight(d_ff, d_model, scale=d_ff**-0.5),
            }
            for _ in range(layers)
        ]
        self.norm = ones(d_model)

    def loss(self, targets):
        """Mean negative log-likelihood of targets [batch, length]."""
        batch, length = targets.shape
        cast = lambda w: tf.cast(w, self.dtype)  # noqa: E731
        inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]])
        x = tf.gather(cast(self.embedding), inputs) + cast(self.positions)
        mask = tf.where(tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0), 0.0, -1e9)
        for w in self.layers:
            y = _rms_norm(x, w["norm_1"])
            q, k, v = tf.split(y @ cast(w["qkv"]), 3, axis=-1)
            q, k, v = (self._split_heads(t) for t in (q, k, v))
            logits = tf.cast(tf.matmul(q, k, transpose_b=True), tf.float32)
            weights = tf.nn.softmax(logits / math.sqrt(q.shape[-1]) + mask)
            attended = tf.transpose(tf.matmul(cast(weights), v), [0, 2, 1, 3])
            x += tf.reshape(attended, x.shape) @ cast(w["out"])
            y = _rms_norm(x, w["norm_2"])
            x += tf.nn.relu(y @ cast(w["up"])) @ cast(w["down"])
        x = _rms_norm(x, self.norm)
        logits = tf.matmul(
            tf.reshape(x, [batch * length, -1]), cast(self.embedding), transpose_b=True
        )
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.reshape(targets, [-1]), tf.cast(logits, tf.float32)
            )
        )

    def _split_heads(self, t):
        batch, length, d_model = t.shape
        t = tf.reshape(t, [batch, length, self.heads, d_model // self.heads])
        return tf.transpose(t, [0, 2, 1, 3])


def _rms_norm(x, scale):
    x32 = tf.cast(x, tf.float32)
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(x32), -1, keepdims=True) + 1e-6)
    return tf.cast(x32 * inverse * scale, x.dtype)


def training_step(model, xla, learning_rate=1e-3, beta1=0.9, beta2=0.98, epsilon=1e-9):
    """A function (targets, step) -> loss that trains the model by a step of Adam."""
    m = [tf.Variable(tf.zeros_like(w)) for w in model.weights]
    v = [tf.Variable(tf.zeros_like(w)) for w in model.weights]

    @tf.function(jit_compile=xla)
    def step_fn(targets, step):
        with tf.GradientTape() as tape:
            loss = model.loss(targets)
        gradients = tape.gradient(loss, model.weights)
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        updates_done = tf.cast(step, tf.float32) + 1.0
        for w, mw, vw, g in zip(model.weights, m, v, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=w.handle,
                m=mw.handle,
                v=vw.handle,
                beta1_power=beta1**updates_done,
                beta2_power=beta2**updates_done,
                lr=learning_rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                grad=g,
            )
        return loss

    return step_fn
