"""Reference implementations of the transformers in plain TensorFlow, in float64."""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from t2tp.hparam import HParams

Params = Mapping[str, tf.Tensor]
Features = Mapping[str, np.ndarray]


def inputs_and_mask(targets: np.ndarray, segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the token before each position, and which positions each position attends to.

    The first position of a segment has no token before it, and gets 0.
    """
    batch, length = targets.shape
    inputs = np.zeros_like(targets)
    is_visible = np.zeros([batch, length, length], bool)
    for b in range(batch):
        for t in range(length):
            if t > 0 and segments[b, t] == segments[b, t - 1]:
                inputs[b, t] = targets[b, t - 1]
            is_visible[b, t, : t + 1] = segments[b, : t + 1] == segments[b, t]
    return inputs, is_visible


class Reference:
    """Computes a model's logits from its variables and hparams."""

    def __init__(self, params: Params, hparams: HParams) -> None:
        """Stores the variables' values, float64, by name."""
        self.params = params
        self.hparams = hparams
        self.balance: list[tf.Tensor] = []
        self.router_z: list[tf.Tensor] = []

    def language_model(self, features: Features) -> tf.Tensor:
        """Returns logits [batch, length, vocab]."""
        targets, segments = features["targets"], features["targets_segmentation"]
        inputs, is_seen = inputs_and_mask(targets, segments)
        x = self.embedded(inputs, features["targets_position"], "", "embedding")
        return self.stack(x, "", is_seen, segments != 0) @ tf.transpose(self.params["embedding"])

    def encoder_decoder(self, features: Features) -> tf.Tensor:
        """Returns logits [batch, length, vocab]."""
        theirs = features["inputs_segmentation"]
        x = self.embedded(features["inputs"], features["inputs_position"], "encoder/", "embedding")
        memory = self.stack(x, "encoder/", theirs[:, :, None] == theirs[:, None], theirs != 0)
        targets, ours = features["targets"], features["targets_segmentation"]
        inputs, is_seen = inputs_and_mask(targets, ours)
        x = self.embedded(inputs, features["targets_position"], "decoder/", "embedding")
        memory_is_seen = ours[:, :, None] == theirs[:, None]
        x = self.stack(x, "decoder/", is_seen, ours != 0, memory, memory_is_seen)
        return x @ tf.transpose(self.params["embedding"])

    def classes(self, features: Features) -> tf.Tensor:
        """Returns logits [batch, classes], from the mean over a row's tokens or from the pooler."""
        segments = features["inputs_segmentation"]
        x = self.embedded(features["inputs"], features["inputs_position"], "", "embedding")
        x = self.typed(x, features.get("inputs_types"))
        x = self.stack(x, "", segments[:, :, None] == segments[:, None], segments != 0)
        if self.hparams.pooler:
            pooled = tf.tanh(self.dense(x[:, 0], "pooler"))
            return self.dense(pooled, "classifier")
        is_real = (segments != 0).astype(float)
        share = is_real / np.maximum(is_real.sum(1, keepdims=True), 1)
        mean = tf.einsum("btd,bt->bd", x, share)
        return mean @ self.params["classifier/kernel"] + self.params["classifier/bias"]

    def masked(self, features: Features, tokens: np.ndarray) -> tf.Tensor:
        """Returns logits [batch, length, vocab] for the masked tokens."""
        segments = features["targets_segmentation"]
        x = self.embedded(tokens, features["targets_position"], "", "embedding")
        x = self.typed(x, features.get("targets_types"))
        x = self.stack(x, "", segments[:, :, None] == segments[:, None], segments != 0)
        if self.hparams.mlm_head:
            x = self.norm(self.activation(self.dense(x, "mlm_head")), "mlm_head")
        return x @ tf.transpose(self.params["embedding"]) + self.bias("logits")

    def dense(self, x, block: str) -> tf.Tensor:
        """Multiplies x by a matrix and adds a bias."""
        return x @ self.params[f"{block}/kernel"] + self.params[f"{block}/bias"]

    def embedded(self, tokens, positions, scope: str, table: str) -> tf.Tensor:
        """Returns embeddings [batch, length, d_model]."""
        x = tf.gather(self.params[table], tokens)
        d_model = x.shape[-1]
        if self.hparams.scale_embeddings:
            x *= math.sqrt(d_model)
        if self.hparams.position == "learned":
            return x + tf.gather(self.params[f"{scope}positions"], positions)
        half = d_model // 2
        turns = np.exp(-np.arange(half) * math.log(10000.0) / (half - 1))
        angle = positions[..., None] * turns
        return x + np.concatenate([np.sin(angle), np.cos(angle)], -1)

    def typed(self, x, types) -> tf.Tensor:
        """Adds the embeddings of token types and applies the norm, if the model has them."""
        if self.hparams.token_types:
            table = self.params["type_embedding"]
            x += table[0] if types is None else tf.gather(table, types)
        return self.norm(x, "embedding_norm") if self.hparams.embedding_norm else x

    def stack(self, x, scope, is_seen, token_mask, memory=None, memory_is_seen=None) -> tf.Tensor:
        """Applies all layers and, if they are pre-norm layers, the final norm."""
        is_pre = self.hparams.norm_position == "pre"

        def residual(x, block, fn):
            if is_pre:
                return x + fn(self.norm(x, block))
            return self.norm(x + fn(x), block)

        for number in range(self.hparams.num_hidden_layers):
            layer = f"{scope}layer_{number:02d}"
            block = f"{layer}/attention"
            x = residual(x, block, lambda y: self.attention(block, y, y, is_seen))  # noqa: B023
            if memory is not None:
                cross = f"{layer}/cross_attention"
                x = residual(x, cross, lambda y: self.attention(cross, y, memory, memory_is_seen))  # noqa: B023
            if f"{layer}/experts/router" in self.params:
                network = f"{layer}/experts"
                x = residual(x, network, lambda y: self.experts(network, y, token_mask))  # noqa: B023
            else:
                network = f"{layer}/feed_forward"
                x = residual(x, network, lambda y: self.feed_forward(network, y))  # noqa: B023
        return self.norm(x, f"{scope}final") if is_pre else x

    def norm(self, x, block: str) -> tf.Tensor:
        """Normalizes the last dimension."""
        y = x
        if self.hparams.norm_type == "layer":
            y = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        y /= tf.sqrt(tf.reduce_mean(y**2, axis=-1, keepdims=True) + self.hparams.norm_epsilon)
        return y * self.params[f"{block}/norm_scale"] + self.bias(f"{block}/norm")

    def bias(self, name: str) -> tf.Tensor | float:
        """Returns a bias, or 0 if the model does not have it."""
        return self.params.get(f"{name}_bias", 0.0)

    def attention(self, block: str, x, memory, is_seen) -> tf.Tensor:
        """Returns [batch, length, d_model]; `is_seen` is [batch, length, memory_length]."""

        def projected(y, name):
            y = tf.einsum("btd,dhk->bthk", y, self.params[f"{block}/{name}"])
            return y + self.bias(f"{block}/{name}")

        q, k, v = projected(x, "q"), projected(memory, "k"), projected(memory, "v")
        k, v = (tf.repeat(y, q.shape[2] // y.shape[2], axis=2) for y in (k, v))
        scores = tf.einsum("bthk,bmhk->bhtm", q, k) / math.sqrt(q.shape[-1])
        is_seen = np.broadcast_to(is_seen[:, None], scores.shape)
        weights = tf.nn.softmax(tf.where(is_seen, scores, -1e300)) * is_seen.astype(float)
        y = tf.einsum("bhtm,bmhk->bthk", weights, v)
        y = tf.einsum("bthk,hkd->btd", y, self.params[f"{block}/output"])
        return y + self.bias(f"{block}/output")

    def feed_forward(self, block: str, x) -> tf.Tensor:
        """Applies the feed-forward network of a layer or of an expert."""
        hidden = x @ self.params[f"{block}/input"] + self.bias(f"{block}/input")
        hidden = self.activation(hidden)
        return hidden @ self.params[f"{block}/output"] + self.bias(f"{block}/output")

    def activation(self, x) -> tf.Tensor:
        """Applies the activation of the hparam `mlp`."""
        if self.hparams.mlp == "relu":
            return tf.nn.relu(x)
        return tf.nn.gelu(x, approximate=self.hparams.mlp == "gelu")

    def experts(self, block: str, x, token_mask) -> tf.Tensor:
        """Applies all experts to all tokens, and weights their outputs by the gates."""
        logits = x @ self.params[f"{block}/router"]
        log_z = tf.reduce_logsumexp(logits, -1)
        p = tf.nn.softmax(logits) * token_mask[..., None].astype(float)
        gates, first = self.gates(p, token_mask)
        count = np.maximum(token_mask.sum(1), 1)[:, None]
        num_experts = p.shape[-1]
        balance = num_experts * tf.reduce_sum(first.sum(1) / count * tf.reduce_sum(p, 1))
        self.balance.append(balance / token_mask.sum())
        self.router_z.append(tf.reduce_sum(log_z**2 * token_mask) / token_mask.sum())
        y = tf.zeros_like(x)
        for expert in range(num_experts):
            mine = {
                f"expert/{name.rpartition('/')[2]}": value[expert]
                for name, value in self.params.items()
                if name.startswith(f"{block}/") and "router" not in name and "norm" not in name
            }
            network = Reference(mine, self.hparams)
            y += gates[..., expert, None] * network.feed_forward("expert", x)
        return y

    def gates(self, p: tf.Tensor, token_mask: np.ndarray) -> tuple[tf.Tensor, np.ndarray]:
        """Returns the weights of the experts, [batch, length, experts], and the first choices."""
        k = {"top_1": 1, "top_2": 2}[self.hparams.moe_gating]
        batch, length, num_experts = p.shape
        factor = self.hparams.moe_capacity_factor_train
        capacity = max(1, min(length, math.ceil(length * k * factor / num_experts)))
        order = np.argsort(-p.numpy(), -1, kind="stable")[..., :k]
        chosen, first = np.zeros(p.shape), np.zeros(p.shape)
        for b in range(batch):
            used = np.zeros(num_experts, int)
            for choice in range(k):
                for t in np.flatnonzero(token_mask[b]):
                    expert = order[b, t, choice]
                    first[b, t, expert] += choice == 0
                    chosen[b, t, expert] = used[expert] < capacity
                    used[expert] += 1
        if k == 1:
            return p * chosen, first
        both = tf.reduce_sum(tf.gather(p, order, batch_dims=2), -1, keepdims=True)
        return p * chosen / tf.maximum(both, 1e-9), first
