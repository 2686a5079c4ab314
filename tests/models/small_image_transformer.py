"""A small image transformer, and once more from its description: plain TensorFlow in float64 on
one device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from t2tp.hparam import HParams
from tests.models.small_images import make_hparams

LEVELS = 14  # Rounded up to 16.
SHAPE = (4, 8, 2)
LENGTH = math.prod(SHAPE)
SMALLER = {
    "image_shape": list(SHAPE),
    "d_model": 16,
    "d_ff": 32,
    "d_kv": 8,
    "num_hidden_layers": 1,
    "block_length": 8,
    "block_height": 2,
    "block_width": 4,
    "initializer_stddev": 1.0,
    "layer_prepostprocess_dropout": 0.0,
}
SPLIT = "batch:data;heads:model;d_ff:model;vocab:model;height:rows;width:columns;length:all"


def make(attention_type: str, **values: object) -> HParams:
    """The set on one device, smaller; in images all heads have the same keys and values."""
    changes = {**SMALLER, "attention_type": attention_type, **values}
    if attention_type == "local_2d":
        changes["num_kv_heads"] = 1
    return make_hparams("mtf_image_transformer_digits", **changes)


def visible(attention_type: str) -> np.ndarray:
    """[place, place]: which places each one sees, from the description."""
    place = np.arange(LENGTH)
    width = SHAPE[1] * SHAPE[2]
    if attention_type == "full":
        near = np.ones([LENGTH, LENGTH], bool)
    elif attention_type == "local_1d":
        block = place // SMALLER["block_length"]
        near = block[:, None] - block[None, :] <= 1
    else:
        row, column = place // width // 2, place % width // 4
        up, left = row[:, None] - row[None, :], column[:, None] - column[None, :]
        near = ((up == 1) & (abs(left) <= 1)) | ((up == 0) & (left >= 0) & (left <= 1))
    return near & (place[None, :] <= place[:, None])


def reference_logits(
    params: Mapping[str, tf.Tensor], targets: np.ndarray, attention_type: str
) -> tf.Tensor:
    """Float64 [batch, length, vocab]."""

    def norm(x, scope):
        mean_square = tf.reduce_mean(x**2, axis=-1, keepdims=True)
        return x / tf.sqrt(mean_square + 1e-6) * params[f"{scope}/norm_scale"]

    before = np.pad(targets.reshape(-1, LENGTH)[:, :-1], [[0, 0], [1, 0]])
    positions = params["row_positions"][:, None] + params["column_positions"][None]
    x = tf.gather(params["embedding"], before) + tf.reshape(positions, [LENGTH, -1])
    for layer in range(SMALLER["num_hidden_layers"]):
        scope = f"layer_{layer:02d}/attention"
        normed = norm(x, scope)
        q, k, v = (tf.einsum("btd,dhk->bhtk", normed, params[f"{scope}/{n}"]) for n in "qkv")
        k, v = (tf.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        scores = tf.einsum("bhtk,bhmk->bhtm", q, k) / math.sqrt(q.shape[-1])
        weights = tf.nn.softmax(tf.where(visible(attention_type), scores, -math.inf))
        attended = tf.einsum("bhtm,bhmk->bhtk", weights, v)
        x += tf.einsum("bhtk,hkd->btd", attended, params[f"{scope}/output"])
        scope = f"layer_{layer:02d}/feed_forward"
        x += tf.nn.relu(norm(x, scope) @ params[f"{scope}/input"]) @ params[f"{scope}/output"]
    return tf.einsum("btd,vd->btv", norm(x, "final"), params["embedding"])
