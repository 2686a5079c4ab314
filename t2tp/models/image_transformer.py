"""An autoregressive transformer over the channel values of pixels.

N. Parmar et al., "Image Transformer" (arXiv:1802.05751): the unconditional model with a categorical
distribution over the values. Values are in raster order; the channels of a pixel are adjacent.
"""

from collections.abc import Mapping

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh
from t2tp.hparam import HParams
from t2tp.layers import variables
from t2tp.layers.attention import AttentionLayer, BlockAttention, SelfAttention
from t2tp.layers.dropout import Dropout
from t2tp.layers.embedding import Embedding
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.heads import Heads, padded_to
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import DecodeStep, FullForward, Prefill, SequenceInfo
from t2tp.layers.stack import Stack
from t2tp.layers.transformer_layer import Layer, Residual
from t2tp.models.autoregressive import AutoregressiveModel, DecodeState, previous_tokens
from t2tp.models.losses import predicted
from t2tp.models.model import LossOutput, vocab_of


@registry.register_model
class MtfImageTransformer(AutoregressiveModel):
    """Pre-norm transformer over the values of an image of `image_shape`.

    With the `attention_type` full or local_1d, the values are one sequence with the dimension
    `length`. With local_2d, they have the dimensions `height` and `width`, where the width includes
    the channels. A mesh can split `length` with local_1d, and `height` and `width` with local_2d.
    """

    takes = ("targets", "weights")

    def __init__(self, hparams: HParams, vocab_sizes: Mapping[str, int]) -> None:
        """Creates the layers; see `Model`.

        Raises:
          ValueError: `image_shape` is not height, width and channels.
        """
        super().__init__(hparams, vocab_sizes)
        if len(hparams.image_shape) != 3:
            raise ValueError(
                f"image_shape must be [height,width,channels], not {hparams.image_shape}."
            )
        height, width, channels = hparams.image_shape
        self._height = mtf.Dimension("height", height)
        # The values of a row of pixels.
        self._width = mtf.Dimension("width", width * channels)
        self._length = mtf.Dimension("length", height * width * channels)
        is_image = hparams.attention_type == "local_2d"
        self._space = [self._height, self._width] if is_image else [self._length]
        self._d_model = mtf.Dimension("d_model", hparams.d_model)
        self._vocab = vocab_of(hparams, vocab_sizes["targets"])
        stddev = hparams.initializer_stddev
        self._embedding = Embedding(self._vocab, self._d_model, initializer_stddev=stddev)
        self._dropout = Dropout(hparams.layer_prepostprocess_dropout)
        self._stack = self._make_stack()

    @property
    def max_length(self) -> int:
        """The number of values of an image."""
        return self._length.size

    def build_loss(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], training: bool
    ) -> LossOutput:
        """Computes the mean negative log-likelihood of the values, in nats.

        Features: `targets`, integers [batch, height, width, channels]; `weights`, float32 [batch]:
          0 for padding rows.

        Raises:
          ValueError: the images are not of `image_shape`.
        """
        targets, weights = features["targets"], features["weights"]
        self._check_shape(targets.shape)
        batch = targets.shape.dims[0]
        shape = mtf.Shape([batch, *self._space])
        x = self._embedded(mtf.reshape(targets, [batch, self._length]))
        x = self._dropout(x, training)
        hidden, _ = self._stack(x, FullForward(self._sequence(mesh, batch), training))
        logits = mtf.cast(self._embedding.logits(hidden), tf.float32)
        targets = mtf.reshape(targets, shape)
        weights = mtf.broadcast(weights, shape)
        return predicted(logits, targets, weights, self._vocab, training, top_5=False)

    def build_prefill(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension
    ) -> DecodeState:
        """See `AutoregressiveModel`. The prefix is the first values of an image.

        Raises:
          ValueError: `prefix` is missing, or `length` is not the number of an image's values.
        """
        prefix = self.prefix_of(features)
        if length.size != self._length.size:
            raise ValueError(
                f"Images of image_shape={self.hparams.image_shape} have {self._length.size}"
                f" values, not {length.size}: decode {self._length.size} values."
            )
        batch, prefix_length = prefix.shape.dims
        values = padded_to(prefix, prefix_length, self._length)
        state: DecodeState = {}
        self._stack(self._embedded(values), Prefill(self._sequence(mesh, batch), length, state))
        return state

    def build_decode_step(
        self, mesh: Mesh, tokens: mtf.Tensor, positions: mtf.Tensor, state: DecodeState
    ) -> tuple[mtf.Tensor, DecodeState]:
        """See `AutoregressiveModel`."""
        before = previous_tokens(tokens, positions)
        x = self._embedding(before, self.activation_dtype)
        rows, columns = self._positions(mesh)
        width = self._width.size
        x += mtf.gather(rows, mtf.floordiv(positions, width), self._height, is_checked=True)
        x += mtf.gather(columns, mtf.mod(positions, width), self._width, is_checked=True)
        state = dict(state)
        x, _ = self._stack(x, DecodeStep(positions, state))
        return mtf.cast(self._embedding.logits(x), tf.float32), state

    def _make_stack(self) -> Stack:
        hparams = self.hparams
        # Scales initial values so that the residual stream does not grow with the depth (GPT-2,
        # section 2.3).
        scale = (2 * hparams.num_hidden_layers) ** -0.5
        kv_heads, dropout = hparams.num_kv_heads, hparams.relu_dropout
        heads = Heads(hparams.num_heads, hparams.d_kv, num_kv_heads=kv_heads, output_scale=scale)
        network = FeedForward("relu", hparams.d_ff, relu_dropout=dropout, output_scale=scale)
        layers = [Layer(self._attention(heads), network)] * hparams.num_hidden_layers
        residual = Residual(Norm("rms"), "pre", self._dropout)
        return Stack(layers, residual, recompute=hparams.recompute)

    def _attention(self, heads: Heads) -> AttentionLayer:
        hparams = self.hparams
        if hparams.attention_type == "full":
            return SelfAttention(heads, causal=True)
        is_image = hparams.attention_type == "local_2d"
        block = [hparams.block_height, hparams.block_width] if is_image else [hparams.block_length]
        return BlockAttention(heads, self._space, block)

    def _sequence(self, mesh: Mesh, batch: mtf.Dimension) -> SequenceInfo:
        positions = mtf.range(mesh, self._length, tf.int32)
        return SequenceInfo(mtf.broadcast(positions, mtf.Shape([batch, self._length])))

    def _embedded(self, values: mtf.Tensor) -> mtf.Tensor:
        """Shifts values [batch, length] right and embeds them: [batch, space..., d_model]."""
        batch, length = values.shape.dims
        before = mtf.shift(values, 1, length, wrap=False)
        before = mtf.reshape(before, [batch, *self._space])
        x = self._embedding(before, self.activation_dtype)
        rows, columns = self._positions(values.mesh)
        grid = mtf.Shape([self._height, self._width, self._d_model])
        positions = mtf.add(rows, columns, output_shape=grid)
        return x + mtf.reshape(positions, [*self._space, self._d_model])

    def _positions(self, mesh: Mesh) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns learned embeddings of rows [height, d_model] and columns [width, d_model]."""
        rest = self._d_model, self.hparams.initializer_stddev, self.activation_dtype
        rows = variables.embedding(mesh, "row_positions", [self._height], *rest)
        return rows, variables.embedding(mesh, "column_positions", [self._width], *rest)

    def _check_shape(self, shape: mtf.Shape) -> None:
        sizes = shape.to_integer_list[1:]
        if sizes != list(self.hparams.image_shape):
            sizes_text = ",".join(map(str, sizes))
            raise ValueError(
                f"The images are {sizes}, and the model is for image_shape="
                f'{self.hparams.image_shape}: say --hparams="image_shape=[{sizes_text}]".'
            )
