"""A small image transformer, and its reference in plain TensorFlow, in float64 on one device."""

import math

import numpy as np
import tensorflow as tf

from t2tp.hparam import HParams
from tests.models.small_images import make_hparams
from tests.ops.attention.composed_attention import visible_blocks

LEVELS = 14  # padded to 16 on two processors
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
    """Returns the set's hparams, made smaller; local_2d also gets one head of keys and values."""
    changes = {**SMALLER, "attention_type": attention_type, **values}
    if attention_type == "local_2d":
        changes["num_kv_heads"] = 1
    return make_hparams("mtf_image_transformer_digits", **changes)


def make_batch(rows: int = 8) -> dict[str, np.ndarray]:
    """Returns random images, the last of which has no weight."""
    targets = np.random.default_rng(0).integers(LEVELS, size=[rows, *SHAPE]).astype(np.int32)
    return {"targets": targets, "weights": np.array([1.0] * (rows - 1) + [0.0], np.float32)}


def visible(attention_type: str) -> np.ndarray:
    """Returns which positions each position attends to, [position, position]."""
    if attention_type == "full":
        return np.tri(LENGTH, dtype=bool)
    if attention_type == "local_1d":
        return visible_blocks([LENGTH], [SMALLER["block_length"]])
    return visible_blocks([SHAPE[0], SHAPE[1] * SHAPE[2]], [2, 4])


def reference_logits(params, targets, attention_type):
    """Returns float64 logits [batch, length, vocab]."""
    before = np.pad(targets.reshape(-1, LENGTH)[:, :-1], [[0, 0], [1, 0]])
    positions = params["row_positions"][:, None] + params["column_positions"][None]
    x = tf.gather(params["embedding"], before) + tf.reshape(positions, [LENGTH, -1])

    def norm(y, block):
        scale = params[f"{block}/norm_scale"]
        return y * scale * tf.math.rsqrt(tf.reduce_mean(y**2, -1, keepdims=True) + 1e-6)

    block = "layer_00/attention"
    y = norm(x, block)
    q, k, v = (tf.einsum("btd,dhk->bhtk", y, params[f"{block}/{name}"]) for name in "qkv")
    k, v = (tf.repeat(y, q.shape[1] // y.shape[1], axis=1) for y in (k, v))
    scores = tf.einsum("bhtk,bhmk->bhtm", q, k) / math.sqrt(q.shape[-1])
    weights = tf.nn.softmax(tf.where(visible(attention_type), scores, -1e300))
    x += tf.einsum("bhtm,bhmk,hkd->btd", weights, v, params[f"{block}/output"])
    block = "layer_00/feed_forward"
    hidden = tf.nn.relu(norm(x, block) @ params[f"{block}/input"])
    x = norm(x + hidden @ params[f"{block}/output"], "final")
    return tf.einsum("btd,vd->btv", x, params["embedding"])
