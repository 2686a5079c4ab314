"""A processor's slice of the vocabulary in a decode step."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.lowering.context import Lowering
from t2tp.lowering.exact_sums import sum_in_parts

# Token ids are sent as float32, which represents integers up to this number exactly.
_MOST_TOKENS = 1 << 24


class VocabSlice:
    """A processor's slice of the logits [rows..., vocab]. The rows may be split, too.

    Attributes:
      logits: float32 [rows..., part].
      ids: int32 [part], the token ids in this slice.
      parts: number of slices of the vocabulary.
    """

    def __init__(self, lowering: Lowering, logits: mtf.Tensor) -> None:
        """Reads the slice. The vocabulary must be the last dimension, of at most 2**24 tokens.

        Raises:
          ValueError: there are more token ids than float32 can represent exactly.
        """
        if logits.shape.dims[-1].size > _MOST_TOKENS:
            raise ValueError(
                f"{logits.shape.dims[-1].size} tokens to choose from: the max is {_MOST_TOKENS}"
            )
        mesh_impl = lowering.mesh_impl(logits)
        vocab = mtf.Shape(logits.shape.dims[-1:])
        (self._axis,) = mesh_impl.tensor_layout(vocab)
        self._collectives = mesh_impl.collectives
        # A slice may be all padding. If all its logits were -infinity, its sums would be NaN, so
        # padding gets float32's lowest number.
        self.logits = mesh_impl.masked(
            tf.cast(lowering.slice(logits), tf.float32), logits.shape, vocab.dims, tf.float32.min
        )
        (size,) = mesh_impl.slice_shape(vocab)
        (begin,) = mesh_impl.slice_begin_tensors(vocab)
        self.parts = -(-vocab.size // size)
        self.ids = tf.range(size, dtype=tf.int32) + begin
        self.axes = [] if self._axis is None else [self._axis]
        self._sums = lowering.parts_of(vocab.dims[0])[1]

    def choosable(
        self, vocab_size: int, may_end: tf.Tensor | None, end_ids: Sequence[int]
    ) -> tf.Tensor:
        """Returns the logits, with -infinity for tokens that must not be chosen.

        Args:
          vocab_size: number of tokens; ids from this number on are padding.
          may_end: booleans [rows...], whether an end token may be chosen; None: always.
          end_ids: ids of the end tokens.
        """
        allowed = self.ids < vocab_size
        if may_end is not None:
            allowed = tf.logical_and(allowed, may_end[..., None] | ~is_any(self.ids, end_ids))
        return tf.where(allowed, self.logits, -float("inf"))

    def normalizer_parts(self) -> tf.Tensor:
        """Returns [rows..., 2]: the slice's largest logit, and its sum of exp(logit - largest).

        With `exact_sums`, the largest logit of all slices is used.
        """
        highest = tf.reduce_max(self.logits, -1, keepdims=True)
        if self._collectives.exact:
            highest = self.highest(highest)
        total = sum_in_parts(tf.exp(self.logits - highest), self._sums)
        return tf.concat([highest, total[..., None]], -1)

    def top_tokens(self, allowed: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gathers each slice's largest logits, descending, their tokens and `normalizer_parts`.

        Args:
          allowed: float [rows..., part], -infinity for tokens that must not be chosen.
          count: number of logits; a smaller slice gives all of its own.

        Returns:
          logits and tokens [rows..., parts, <= count], and the normalizers [rows..., parts, 2].
        """
        values, indices = tf.math.top_k(allowed, min(count, allowed.shape[-1]))
        # Tokens are exact in float32, so one collective sends them with the logits.
        ids = tf.cast(tf.gather(self.ids, indices), tf.float32)
        gathered = self.gather(tf.concat([values, ids, self.normalizer_parts()], -1))
        values, ids, normalizers = tf.split(gathered, [*[values.shape[-1]] * 2, 2], -1)
        return values, tf.cast(ids, tf.int32), normalizers

    def gather(self, x: tf.Tensor) -> tf.Tensor:
        """All-gathers [rows..., n] of each slice to [rows..., parts, n]."""
        if self._axis is not None:
            x = self._collectives.allgather(x, self._axis, x.shape.rank - 1)
        sizes = x.shape.as_list()
        return tf.reshape(x, [*sizes[:-1], self.parts, sizes[-1] // self.parts])

    def add_up(self, x: tf.Tensor) -> tf.Tensor:
        """Sums over all slices."""
        return self._collectives.allreduce(x, self.axes, "Add")

    def highest(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the max over all slices."""
        return self._collectives.allreduce(x, self.axes, "Max")


def log_probs_of(logits: tf.Tensor, parts: tf.Tensor) -> tf.Tensor:
    """Computes the log-probabilities of tokens, rounded as in the loss.

    Args:
      logits: [rows..., any], the logits of the tokens.
      parts: [rows..., parts, 2], `VocabSlice.normalizer_parts` of all slices.
    """
    highest = tf.reduce_max(parts[..., 0], -1)
    totals = parts[..., 1] * tf.exp(parts[..., 0] - highest[..., None])
    count = totals.shape[-1]  # A power of two with `exact_sums`.
    total = sum_in_parts(totals, count if count & (count - 1) == 0 else 1)
    per_row = [*highest.shape, *[1] * (logits.shape.rank - highest.shape.rank)]
    return logits - tf.reshape(highest, per_row) - tf.reshape(tf.math.log(total), per_row)


def is_any(tokens: tf.Tensor, end_ids: Sequence[int]) -> tf.Tensor:
    """Returns whether each token is an end token."""
    return tf.reduce_any([tf.equal(tokens, each) for each in (-1, *end_ids)], axis=0)
