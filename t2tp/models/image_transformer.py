"""A transformer that makes pictures, one value of a channel of a pixel after the other.

N. Parmar et al., "Image Transformer" (arXiv:1802.05751), unconditional, with a categorical
distribution over the values; row by row, the channels of a pixel in a row.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.layers import variables
from t2tp.layers.attention import SelfAttention, Sequence
from t2tp.layers.block_attention import BlockAttention
from t2tp.layers.dropout import Dropout
from t2tp.layers.embedding import Embedding
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.heads import Heads, padded_to
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import AnySelfAttention, BeginPass, StepPass, WholePass
from t2tp.layers.stack import Layer, Residual, Stack
from t2tp.mesh.program import Mesh
from t2tp.models.autoregressive import AutoregressiveModel, State, symbols_before
from t2tp.models.losses import predicted
from t2tp.models.model import LossOutput, vocab_of
from t2tp.nearest import nearest
from t2tp.ops.gather import checked_gather

_ATTENTION_TYPES = ("full", "local_1d", "local_2d")


@registry.register_model
class MtfImageTransformer(AutoregressiveModel):
    """Pre-norm blocks over the values of a picture of `image_shape`.

    With `attention_type` full or local_1d the values are one sequence, `length`, which local_1d
    lets a mesh split; with local_2d they are `height` times `width`, either of which may be split,
    where `width` counts each channel.
    """

    takes = ("targets", "weights")

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Chooses the layers; see `Model`.

        Raises:
          ValueError: there is no such `attention_type`, or `image_shape` is not height, width and
            channels.
        """
        super().__init__(hparams, vocab_sizes)
        if hparams.attention_type not in _ATTENTION_TYPES:
            known = nearest(hparams.attention_type, _ATTENTION_TYPES, "types")
            raise ValueError(f"attention_type is {hparams.attention_type!r}: {known}")
        if len(hparams.image_shape) != 3:
            raise ValueError(
                f"image_shape must be [height,width,channels], not {hparams.image_shape}."
            )
        height, width, channels = hparams.image_shape
        self._height = mtf.Dimension("height", height)
        # Values of a row: the channels of a pixel stand side by side.
        self._width = mtf.Dimension("width", width * channels)
        self._length = mtf.Dimension("length", height * width * channels)
        is_picture = hparams.attention_type == "local_2d"
        self._space = [self._height, self._width] if is_picture else [self._length]
        self._d_model = mtf.Dimension("d_model", hparams.d_model)
        self._vocab = vocab_of(hparams, vocab_sizes["targets"])
        self._embedding = Embedding(self._vocab, self._d_model, stddev=hparams.initializer_stddev)
        self._dropout = Dropout(hparams.layer_prepostprocess_dropout)
        self._stack = self._make_stack()

    @property
    def max_length(self) -> int:
        """As many as a picture has values."""
        return self._length.size

    def loss(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool) -> LossOutput:
        """Mean negative log-likelihood of the values, in nats.

        Features: `targets`, integers [batch, height, width, channels]; `weights`, float32 [batch]:
          0 for rows that are no pictures.

        Raises:
          ValueError: the pictures are not of `image_shape`.
        """
        targets, weights = features["targets"], features["weights"]
        self._check_shape(targets.shape)
        batch = targets.shape.dims[0]
        places = mtf.Shape([batch, *self._space])
        x = self._embedded(mtf.reshape(targets, [batch, self._length]))
        x = self._dropout(x, training)
        hidden, _ = self._stack(x, WholePass(self._sequence(mesh, batch), training))
        logits = mtf.cast(self._embedding.logits(hidden), tf.float32)
        targets = mtf.reshape(targets, places)
        weights = mtf.broadcast(weights, places)
        return predicted(logits, targets, weights, self._vocab, training, top_5=False)

    def begin(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension) -> State:
        """See `AutoregressiveModel`; a prefix is the first values of a picture.

        Raises:
          ValueError: there is no prefix, so that nothing says how large the batch is, or the
            length is not that of a picture.
        """
        prefix = self.prefix_of(features)
        if length.size != self._length.size:
            raise ValueError(
                f"Pictures of image_shape={self.hparams.image_shape} have {self._length.size}"
                f" values, not {length.size}: decode so many."
            )
        batch, prefix_length = prefix.shape.dims
        values = padded_to(prefix, prefix_length, self._length)
        state: State = {}
        self._stack(self._embedded(values), BeginPass(self._sequence(mesh, batch), length, state))
        return state

    def step(
        self, mesh: Mesh, symbols: mtf.Tensor, positions: mtf.Tensor, state: State
    ) -> tuple[mtf.Tensor, State]:
        """See `AutoregressiveModel`."""
        before = symbols_before(symbols, positions)
        x = self._embedding(before, self.activation_dtype)
        rows, columns = self._positions(mesh)
        width = self._width.size
        x += checked_gather(rows, mtf.floordiv(positions, width), self._height)
        x += checked_gather(columns, mtf.mod(positions, width), self._width)
        state = dict(state)
        x, _ = self._stack(x, StepPass(positions, state))
        return mtf.cast(self._embedding.logits(x), tf.float32), state

    def _make_stack(self) -> Stack:
        hparams = self.hparams
        # The sum of all blocks does not grow with their number (GPT-2, section 2.3).
        scale = (2 * hparams.num_hidden_layers) ** -0.5
        layer = Layer(
            self._attention(
                Heads(
                    hparams.num_heads,
                    hparams.d_kv,
                    num_kv_heads=hparams.num_kv_heads,
                    output_scale=scale,
                )
            ),
            FeedForward("relu", hparams.d_ff, dropout=hparams.relu_dropout, output_scale=scale),
        )
        return Stack(
            [layer] * hparams.num_hidden_layers,
            Residual(Norm("rms"), "pre", self._dropout),
            recompute=hparams.recompute,
        )

    def _attention(self, heads: Heads) -> AnySelfAttention:
        hparams = self.hparams
        if hparams.attention_type == "full":
            return SelfAttention(heads, causal=True)
        is_picture = hparams.attention_type == "local_2d"
        block = (
            [hparams.block_height, hparams.block_width] if is_picture else [hparams.block_length]
        )
        return BlockAttention(heads, self._space, block)

    def _sequence(self, mesh: Mesh, batch: mtf.Dimension) -> Sequence:
        positions = mtf.range(mesh, self._length, tf.int32)
        return Sequence(mtf.broadcast(positions, mtf.Shape([batch, self._length])))

    def _embedded(self, values: mtf.Tensor) -> mtf.Tensor:
        """Values [batch, length] -> what predicts each: [batch, space..., d_model]."""
        batch, length = values.shape.dims
        before = mtf.shift(values, 1, length, wrap=False)
        before = mtf.reshape(before, [batch, *self._space])
        x = self._embedding(before, self.activation_dtype)
        rows, columns = self._positions(values.mesh)
        grid = mtf.Shape([self._height, self._width, self._d_model])
        places = mtf.add(rows, columns, output_shape=grid)
        return x + mtf.reshape(places, [*self._space, self._d_model])

    def _positions(self, mesh: Mesh) -> tuple[mtf.Tensor, mtf.Tensor]:
        """What is learned of each row, [height, d_model], and of each place in a row, [width,
        d_model]."""
        stddev, dtype = self.hparams.initializer_stddev, self.activation_dtype
        of_rows, of_columns = [self._height, self._d_model], [self._width, self._d_model]
        return (
            variables.weight(mesh, "row_positions", of_rows, stddev, dtype),
            variables.weight(mesh, "column_positions", of_columns, stddev, dtype),
        )

    def _check_shape(self, shape: mtf.Shape) -> None:
        sizes = shape.to_integer_list[1:]
        if sizes != list(self.hparams.image_shape):
            said = ",".join(map(str, sizes))
            raise ValueError(
                f"The pictures are {sizes}, and the model is for image_shape="
                f'{self.hparams.image_shape}: say --hparams="image_shape=[{said}]".'
            )
