"""Chooses a token from logits whose vocabulary may be split over the mesh.

Each processor chooses in its slice. Only these choices are gathered: a few numbers per row.
Sampling is an argmax, too: if an independent Gumbel variable is added to each logit, the index of
the largest sum is a sample from the softmax. A Gumbel variable is a function of the row's key, the
position and the token (`t2tp.lowering.random`), so neither the mesh nor the batch changes a sample.
"""

import tensorflow as tf

from t2tp import mtf
from t2tp.decoding.nucleus import nucleus_mask
from t2tp.decoding.options import SAMPLE, DecodeOptions
from t2tp.decoding.vocab_slice import VocabSlice, as_floats, as_ids, log_probs_of
from t2tp.lowering import random
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation


def choose_tokens(
    logits: mtf.Tensor,
    keys: mtf.Tensor,
    positions: mtf.Tensor,
    may_end: mtf.Tensor,
    vocab_size: int,
    options: DecodeOptions,
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Chooses a token for each row: the most probable one, or a sample.

    Args:
      logits: float [batch, vocab].
      keys: int64 [batch], keys of the rows' random numbers.
      positions: int32 [batch], positions of the tokens to choose.
      may_end: booleans [batch], whether one of `options.end_ids` may be chosen.
      vocab_size: number of tokens; ids from this number on are padding and never chosen.
      options: how to choose.

    Returns:
      tokens, int32 [batch]; and the natural logarithms of the model's probabilities of the tokens
      (before temperature, top-k and top-p), float32 [batch].
    """
    operation = ChooseOperation(logits, keys, positions, may_end, vocab_size, options)
    tokens, log_probs = operation.outputs
    return tokens, log_probs


class ChooseOperation(Operation):
    """Chooses tokens on a split vocabulary; see `choose_tokens`."""

    accepts_padding = True
    dropped_dims = "kept"

    def __init__(
        self,
        logits: mtf.Tensor,
        keys: mtf.Tensor,
        positions: mtf.Tensor,
        may_end: mtf.Tensor,
        vocab_size: int,
        options: DecodeOptions,
    ) -> None:
        super().__init__([logits, keys, positions, may_end], name="choose")
        self._vocab_size = vocab_size
        self._options = options
        rows = mtf.Shape(logits.shape.dims[:-1])
        self._outputs = [mtf.Tensor(self, rows, tf.int32), mtf.Tensor(self, rows, tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        """Chooses in this processor's slice, then among the slices' choices."""
        logits, keys, positions, may_end = self.inputs
        options = self._options
        part = VocabSlice(lowering, logits)
        can_forbid = options.min_length > 0
        allowed = part.choosable(
            self._vocab_size, lowering.slice(may_end) if can_forbid else None, options.end_ids
        )
        if options.method != SAMPLE:
            result = _best(part, allowed, allowed)
        else:
            sampler = _Sampler(lowering.slice(keys), lowering.slice(positions), options)
            result = (
                sampler.from_top_k(part, allowed)
                if options.top_k
                else sampler.from_all(part, allowed)
            )
        for output, value in zip(self.outputs, result, strict=True):
            lowering.set_slice(output, value)


class _Sampler:
    """A sampler of one token per row."""

    def __init__(self, keys: tf.Tensor, positions: tf.Tensor, options: DecodeOptions) -> None:
        self._keys = random.fold_in(tf.bitcast(keys, tf.uint64), positions)
        self._temperature = options.sampling_temperature
        self._top_k = options.top_k
        self._top_p = options.top_p

    def from_all(self, part: VocabSlice, allowed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Samples from all tokens, or from the nucleus."""
        scaled = allowed / self._temperature
        if self._top_p < 1:
            scaled = tf.where(nucleus_mask(part, scaled, self._top_p), scaled, -float("inf"))
        return _best(part, allowed, scaled + self._gumbel(part.ids[None, :]))

    def from_top_k(self, part: VocabSlice, allowed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Samples from the k most probable tokens; each slice proposes up to k candidates."""
        values, ids = top_tokens(part, allowed, self._top_k)
        gathered = part.gather(tf.concat([values, as_floats(ids), part.normalizer_parts()], -1))
        count = values.shape[-1]
        rows = gathered.shape[0]
        values = tf.reshape(gathered[..., :count], [rows, -1])
        ids = tf.reshape(as_ids(gathered[..., count : 2 * count]), [rows, -1])
        parts = gathered[..., 2 * count :]
        values, indices = tf.math.top_k(values, min(self._top_k, values.shape[-1]))
        ids = tf.gather(ids, indices, batch_dims=1)
        scaled = values / self._temperature
        if self._top_p < 1:
            before = tf.cumsum(tf.nn.softmax(scaled), -1, exclusive=True)
            scaled = tf.where(before < self._top_p, scaled, -float("inf"))
        sampled = tf.argmax(scaled + self._gumbel(ids), -1, tf.int32)
        log_probs = log_probs_of(tf.gather(values, sampled, batch_dims=1), parts)
        return tf.gather(ids, sampled, batch_dims=1), log_probs

    def _gumbel(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns a Gumbel variable for each token: float32 [rows, tokens]."""
        bits = random.bits(self._keys[:, None], tf.cast(ids, tf.uint64))
        # A Gumbel variable is minus the logarithm of an exponential variable. A sampled token
        # mostly has a large Gumbel variable, so its exponential variable is near 0, where float32
        # is most precise.
        share = (tf.cast(bits, tf.float32) + 0.5) * 2.0**-32
        exponential = -tf.math.log1p(-tf.minimum(share, 1 - 2.0**-24))
        return -tf.math.log(exponential)


def top_tokens(part: VocabSlice, allowed: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the largest logits of a slice, descending, and their tokens: [rows..., <= count].

    `allowed` is float [rows..., part], -infinity for tokens that must not be chosen.
    """
    values, indices = tf.math.top_k(allowed, min(count, allowed.shape[-1]))
    return values, tf.gather(part.ids, indices)


def _best(part: VocabSlice, allowed: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the tokens of the highest scores, and their log-probabilities."""
    index = tf.argmax(scores, -1, tf.int32)
    picked = tf.stack(
        [
            tf.gather(scores, index, batch_dims=1),
            tf.gather(allowed, index, batch_dims=1),
            as_floats(tf.gather(part.ids, index)),
        ],
        -1,
    )
    gathered = part.gather(tf.concat([picked, part.normalizer_parts()], -1))  # [rows, parts, 5]
    best = tf.gather(gathered, tf.argmax(gathered[..., 0], -1), batch_dims=1)
    return as_ids(best[:, 2]), log_probs_of(best[:, 1], gathered[..., 3:])
