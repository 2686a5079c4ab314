"""A decoder-only transformer language model.

Pre-norm blocks with RMS norms, learned positions, and an output that shares the embedding's
weights. All is in named dimensions; Megatron's way of splitting it (M. Shoeybi et al.,
arXiv:1909.08053, section 3) is the layout `batch:data;heads:model;d_ff:model;vocab:model` and
nothing else: each block then costs two reductions over the model axis forward and two backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf, registry
from t2tp.mesh.program import Mesh
from t2tp.models.model import LossOutput, Model
from t2tp.ops.attention import causal_attention
from t2tp.ops.cross_entropy import softmax_cross_entropy
from t2tp.ops.normalization import rms_norm


@registry.register_model
class TransformerLm(Model):
    """Decoder-only transformer language model."""

    takes = ("targets", "targets_segmentation", "targets_position")

    def loss(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool) -> LossOutput:
        """Mean negative log-likelihood of the real tokens, in nats.

        Features: `targets`, `targets_segmentation` (0: padding), `targets_position`, integers
          [batch, length].

        Raises:
          ValueError: the length is above `max_length`.
        """
        targets = features["targets"]
        segments = features["targets_segmentation"]
        logits = self._logits(mesh, targets, segments, features["targets_position"], training)
        nll = softmax_cross_entropy(logits, targets, self._vocab_dim)
        is_real = mtf.cast(mtf.not_equal(segments, 0), tf.float32)
        nll_sum = mtf.reduce_sum(nll * is_real)
        tokens = mtf.reduce_sum(is_real)
        metrics = {"nll": nll_sum, "tokens": tokens}
        if not training:
            is_right = mtf.cast(mtf.equal(mtf.argmax(logits, self._vocab_dim), targets), tf.float32)
            metrics["correct"] = mtf.reduce_sum(is_right * is_real)
        return LossOutput(nll_sum / mtf.maximum(tokens, 1.0), metrics)

    def next_token_logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """See `Model`."""
        targets, position = features["targets"], features["position"]
        length = targets.shape.dims[-1]
        one_segment = mtf.ones_like(targets)
        positions = mtf.broadcast(mtf.range(mesh, length, tf.int32), targets.shape)
        hidden = self._hidden(mesh, targets, one_segment, positions, training=False)
        at_position = mtf.one_hot(position, length, dtype=hidden.dtype)
        hidden = mtf.einsum([hidden, at_position], reduced_dims=[length])
        return mtf.cast(self._project_to_vocab(mesh, hidden), tf.float32)

    @property
    def _vocab_dim(self) -> mtf.Dimension:
        divisor = self.hparams.vocab_divisor
        return mtf.Dimension("vocab", math.ceil(self.vocab_sizes["targets"] / divisor) * divisor)

    @property
    def _d_model(self) -> mtf.Dimension:
        return mtf.Dimension("d_model", self.hparams.d_model)

    def _variable(
        self, mesh: Mesh, name: str, dims: list[mtf.Dimension], stddev: float
    ) -> mtf.Tensor:
        return mtf.get_variable(
            mesh,
            name,
            mtf.Shape(dims),
            dtype=mtf.VariableDType(activation_dtype=self.activation_dtype),
            initializer=tf1.random_normal_initializer(stddev=stddev),
        )

    def _embedding_table(self, mesh: Mesh) -> mtf.Tensor:
        dims = [self._vocab_dim, self._d_model]
        return self._variable(mesh, "embedding", dims, self.hparams.initializer_stddev)

    def _logits(
        self,
        mesh: Mesh,
        targets: mtf.Tensor,
        segments: mtf.Tensor,
        positions: mtf.Tensor,
        training: bool,
    ) -> mtf.Tensor:
        hidden = self._hidden(mesh, targets, segments, positions, training)
        return self._project_to_vocab(mesh, hidden)

    def _project_to_vocab(self, mesh: Mesh, hidden: mtf.Tensor) -> mtf.Tensor:
        """[..., d_model] -> [..., vocab]."""
        shape = hidden.shape - self._d_model + self._vocab_dim
        return mtf.einsum([hidden, self._embedding_table(mesh)], output_shape=shape)

    def _hidden(
        self,
        mesh: Mesh,
        targets: mtf.Tensor,
        segments: mtf.Tensor,
        positions: mtf.Tensor,
        training: bool,
    ) -> mtf.Tensor:
        """What the last block says of each position, normalized: [batch, length, d_model]."""
        length = targets.shape.dims[-1]
        if length.size > self.hparams.max_length:
            raise ValueError(
                f"The features have length {length.size}, and the model has positions for"
                f" max_length={self.hparams.max_length}: feed at most as many tokens, or train with"
                f" a larger max_length."
            )
        # A position sees the token before it in its segment; the first of a segment sees token 0.
        before = mtf.shift(targets, 1, length, wrap=False)
        continues = mtf.equal(segments, mtf.shift(segments, 1, length, wrap=False))
        inputs = before * mtf.cast(continues, before.dtype)

        max_length = mtf.Dimension("max_length", self.hparams.max_length)
        position_table = self._variable(
            mesh, "positions", [max_length, self._d_model], self.hparams.initializer_stddev
        )
        x = mtf.gather(self._embedding_table(mesh), inputs, self._vocab_dim)
        x += mtf.gather(position_table, positions, max_length)
        x = self._dropout(x, training)
        for layer in range(self.hparams.num_hidden_layers):
            with tf1.variable_scope(f"layer_{layer:02d}"):
                with tf1.variable_scope("attention"):
                    x += self._dropout(
                        self._attention(mesh, self._norm(mesh, x), segments), training
                    )
                with tf1.variable_scope("feed_forward"):
                    x += self._dropout(self._feed_forward(mesh, self._norm(mesh, x)), training)
        with tf1.variable_scope("final"):
            return self._norm(mesh, x)

    def _norm(self, mesh: Mesh, x: mtf.Tensor) -> mtf.Tensor:
        scale = mtf.get_variable(
            mesh, "norm_scale", mtf.Shape([self._d_model]), initializer=tf1.ones_initializer()
        )
        return rms_norm(x, scale, self._d_model)

    def _dropout(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        rate = self.hparams.layer_prepostprocess_dropout
        return mtf.dropout(x, is_training=training, rate=rate) if rate else x

    def _attention(self, mesh: Mesh, x: mtf.Tensor, segments: mtf.Tensor) -> mtf.Tensor:
        """[batch, length, d_model] -> [batch, length, d_model]."""
        batch, length, d_model = x.shape.dims
        heads = mtf.Dimension("heads", self.hparams.num_heads)
        d_kv = mtf.Dimension("d_kv", self.hparams.d_kv)
        per_head = mtf.Shape([batch, heads, length, d_kv])
        q, k, v = (
            mtf.einsum(
                [x, self._variable(mesh, name, [d_model, heads, d_kv], d_model.size**-0.5)],
                output_shape=per_head,
            )
            for name in ("q", "k", "v")
        )
        attended = causal_attention(q, k, v, segments)
        w_out = self._variable(
            mesh, "output", [heads, d_kv, d_model], self._output_stddev(heads, d_kv)
        )
        return mtf.einsum([attended, w_out], output_shape=x.shape)

    def _feed_forward(self, mesh: Mesh, x: mtf.Tensor) -> mtf.Tensor:
        """[batch, length, d_model] -> [batch, length, d_model]."""
        d_model = x.shape.dims[-1]
        d_ff = mtf.Dimension("d_ff", self.hparams.d_ff)
        w_in = self._variable(mesh, "input", [d_model, d_ff], d_model.size**-0.5)
        w_out = self._variable(mesh, "output", [d_ff, d_model], self._output_stddev(d_ff))
        hidden = mtf.relu(mtf.einsum([x, w_in], output_shape=x.shape - d_model + d_ff))
        return mtf.einsum([hidden, w_out], output_shape=x.shape)

    def _output_stddev(self, *fan_in: mtf.Dimension) -> float:
        """Smaller for deeper models, so that the sum of the blocks does not grow (GPT-2, section
        2.3)."""
        blocks = 2 * self.hparams.num_hidden_layers
        return (mtf.Shape(list(fan_in)).size * blocks) ** -0.5
