"""`transformer_lm` once more, from its description: plain TensorFlow in float64 on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

Params = Mapping[str, tf.Tensor]


def token_losses(params: Params, features: Mapping[str, np.ndarray]) -> tf.Tensor:
    """Negative log-likelihood of each token, in nats.

    Args:
      params: the variables by name, float64.
      features: `targets`, `targets_segmentation`, `targets_position`, integers [batch, length].

    Returns:
      [batch, length], padding included.
    """
    targets, segments = features["targets"], features["targets_segmentation"]
    inputs, is_visible = inputs_and_mask(targets, segments)
    x = tf.gather(params["embedding"], inputs)
    x += tf.gather(params["positions"], features["targets_position"])
    for layer in range(sum(name.endswith("attention/q") for name in params)):
        block = f"layer_{layer:02d}/attention"
        x += attention(params, block, rms_norm(x, params[f"{block}/norm_scale"]), is_visible)
        block = f"layer_{layer:02d}/feed_forward"
        hidden = rms_norm(x, params[f"{block}/norm_scale"]) @ params[f"{block}/input"]
        x += tf.nn.relu(hidden) @ params[f"{block}/output"]
    x = rms_norm(x, params["final/norm_scale"])
    logits = tf.einsum("btd,vd->btv", x, params["embedding"])
    return -tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=2)


def inputs_and_mask(targets: np.ndarray, segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The token before each one in its segment, or 0, and whom each position sees."""
    batch, length = targets.shape
    inputs = np.zeros_like(targets)
    is_visible = np.zeros([batch, length, length], bool)
    for b in range(batch):
        for t in range(length):
            if t > 0 and segments[b, t] == segments[b, t - 1]:
                inputs[b, t] = targets[b, t - 1]
            is_visible[b, t, : t + 1] = segments[b, : t + 1] == segments[b, t]
    return inputs, is_visible


def rms_norm(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Over the last dimension."""
    return x / tf.sqrt(tf.reduce_mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def attention(params: Params, block: str, x: tf.Tensor, is_visible: np.ndarray) -> tf.Tensor:
    """Of all heads, [batch, length, d_model] to the same."""
    q, k, v = (tf.einsum("btd,dhk->bhtk", x, params[f"{block}/{name}"]) for name in "qkv")
    scores = tf.einsum("bhtk,bhmk->bhtm", q, k) / math.sqrt(q.shape[-1])
    weights = tf.nn.softmax(tf.where(is_visible[:, None], scores, -math.inf))
    attended = tf.einsum("bhtm,bhmk->bhtk", weights, v)
    return tf.einsum("bhtk,hkd->btd", attended, params[f"{block}/output"])
