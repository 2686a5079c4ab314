"""Greedy decoding and sampling: one sequence per row.

A token is chosen from logits whose vocabulary may be split over the mesh. Each processor chooses in
its slice. Only these choices are gathered: a few numbers per row. Sampling is an argmax, too: if an
independent Gumbel variable is added to each logit, the index of the largest sum is a sample from
the softmax. A Gumbel variable is a function of the row's key, the position and the token
(`t2tp.lowering.random`), so neither the mesh nor the batch changes a sample.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.decoding.options import SAMPLE, DecodeOptions
from t2tp.decoding.prompt_batch import PromptBatch
from t2tp.decoding.token_loop import token_loop
from t2tp.decoding.vocab_slice import VocabSlice, is_any, log_probs_of
from t2tp.lowering import random
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.models.autoregressive import AutoregressiveModel, DecodeState


class ChooseOperation(Operation):
    """Chooses a token for each row, the most probable one or a sample, from a split vocabulary.

    Outputs: tokens, int32 [batch]; and the natural logarithms of the model's probabilities of the
      tokens (before temperature, top-k and top-p), float32 [batch].
    """

    signature = Signature(ordered=ALL, pads=True)

    def __init__(
        self,
        logits: mtf.Tensor,
        keys: mtf.Tensor,
        positions: mtf.Tensor,
        may_end: mtf.Tensor,
        vocab_size: int,
        options: DecodeOptions,
    ) -> None:
        """Adds the operation to the graph.

        Args:
          logits: float [batch, vocab].
          keys: int64 [batch], keys of the rows' random numbers.
          positions: int32 [batch], positions of the tokens to choose.
          may_end: booleans [batch], whether one of `options.end_ids` may be chosen.
          vocab_size: number of tokens; ids from this number on are padding and never chosen.
          options: how to choose.
        """
        super().__init__([logits, keys, positions, may_end], name="choose")
        self._vocab_size = vocab_size
        self._options = options
        rows = mtf.Shape(logits.shape.dims[:-1])
        self.set_outputs((rows, tf.int32), (rows, tf.float32))

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
            xla = lowering.mesh_impl(logits).target.uses_xla
            sampler = _Sampler(lowering.slice(keys), lowering.slice(positions), options, xla)
            result = (
                sampler.from_top_k(part, allowed)
                if options.top_k
                else sampler.from_all(part, allowed)
            )
        for output, value in zip(self.outputs, result, strict=True):
            lowering.set_slice(output, value)


class _Sampler:
    """A sampler of one token per row."""

    def __init__(
        self, keys: tf.Tensor, positions: tf.Tensor, options: DecodeOptions, xla: bool
    ) -> None:
        self._xla = xla
        self._keys = random.fold_in(tf.bitcast(keys, tf.uint64), positions)
        self._temperature = options.sampling_temperature
        self._top_k = options.top_k
        self._top_p = options.top_p
        self._log_min_p = math.log(options.min_p) if options.min_p else -math.inf

    def from_all(self, part: VocabSlice, allowed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Samples from all tokens, or from the nucleus."""
        scaled = allowed / self._temperature
        if self._top_p < 1:
            scaled = tf.where(nucleus_mask(part, scaled, self._top_p), scaled, -float("inf"))
        if self._log_min_p > -math.inf:
            highest = part.highest(tf.reduce_max(scaled, -1, keepdims=True))
            scaled = tf.where(scaled >= highest + self._log_min_p, scaled, -float("inf"))
        return _best(part, allowed, scaled + self._gumbel(part.ids[None, :]))

    def from_top_k(self, part: VocabSlice, allowed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Samples from the k most probable tokens; each slice proposes up to k candidates."""
        values, ids, normalizers = part.top_tokens(allowed, self._top_k)
        values, ids = (tf.reshape(x, [x.shape[0], -1]) for x in (values, ids))
        values, indices = tf.math.top_k(values, min(self._top_k, values.shape[-1]))
        ids = tf.gather(ids, indices, batch_dims=1)
        scaled = values / self._temperature
        if self._top_p < 1:
            before = tf.cumsum(tf.nn.softmax(scaled), -1, exclusive=True)
            scaled = tf.where(before < self._top_p, scaled, -float("inf"))
        scaled = tf.where(scaled >= scaled[:, :1] + self._log_min_p, scaled, -float("inf"))
        sampled = tf.argmax(scaled + self._gumbel(ids), -1, tf.int32)
        log_probs = log_probs_of(tf.gather(values, sampled, batch_dims=1), normalizers)
        return tf.gather(ids, sampled, batch_dims=1), log_probs

    def _gumbel(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns a Gumbel variable for each token: float32 [rows, tokens]."""
        ids = tf.cast(ids, tf.uint64)
        bits = random.draw(random.unchanged, self._keys[:, None], ids, xla=self._xla)
        # A Gumbel variable is minus the logarithm of an exponential variable. A sampled token
        # mostly has a large Gumbel variable, so its exponential variable is near 0, where float32
        # is most precise.
        share = (tf.cast(bits, tf.float32) + 0.5) * 2.0**-32
        exponential = -tf.math.log1p(-tf.minimum(share, 1 - 2.0**-24))
        return -tf.math.log(exponential)


def _best(part: VocabSlice, allowed: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the tokens of the highest scores, and their log-probabilities."""
    index = tf.argmax(scores, -1, tf.int32)
    picked = tf.stack(
        [
            tf.gather(scores, index, batch_dims=1),
            tf.gather(allowed, index, batch_dims=1),
            tf.cast(tf.gather(part.ids, index), tf.float32),
        ],
        -1,
    )
    gathered = part.gather(tf.concat([picked, part.normalizer_parts()], -1))  # [rows, parts, 5]
    best = tf.gather(gathered, tf.argmax(gathered[..., 0], -1), batch_dims=1)
    return tf.cast(best[:, 2], tf.int32), log_probs_of(best[:, 1], gathered[..., 3:])


# Nucleus sampling gathers and sorts no logits. Instead, four passes find the bits of the smallest
# logit in the nucleus, eight bits (a digit) at a time. Each pass selects the logits that begin with
# the digits found so far, and adds up their probabilities by the next digit.
_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS
_SIGN = 1 << 31


def nucleus_mask(part: VocabSlice, logits: tf.Tensor, top_p: float) -> tf.Tensor:
    """Returns booleans [rows, part]: whether a vocabulary slice's tokens are in the nucleus.

    All tokens that share the nucleus's smallest logit are included.

    Args:
      part: the slice of the vocabulary.
      logits: float32 [rows, part], -infinity where a token must not be chosen.
      top_p: total probability of the nucleus, between 0 and 1.
    """
    highest = part.highest(tf.reduce_max(logits, -1, keepdims=True))
    weights = tf.exp(logits - highest)
    total = part.add_up(tf.reduce_sum(weights, -1))
    keys = _ordered(logits)
    prefix = tf.zeros_like(total, tf.int64)  # each row's digits found so far
    above = tf.zeros_like(total)  # the weight of all logits above those with this prefix
    for shift in (24, 16, 8, 0):
        has_prefix = tf.equal(_shifted(keys, shift + _DIGIT_BITS), prefix[:, None])
        digits = tf.cast(_shifted(keys, shift) % _DIGITS, tf.int32)
        by_digit = part.add_up(_sums(tf.where(has_prefix, weights, 0.0), digits))
        from_top = above[:, None] + tf.cumsum(by_digit, -1, reverse=True)
        # The largest digit that completes the nucleus; 0 if rounding errors leave none.
        is_full = from_top >= top_p * total[:, None]
        digit = tf.reduce_max(tf.where(is_full, tf.range(_DIGITS), 0), -1)
        weight = tf.gather(by_digit, digit, batch_dims=1)
        above = tf.gather(from_top, digit, batch_dims=1) - weight
        prefix = prefix * _DIGITS + tf.cast(digit, tf.int64)
    return (keys >= prefix[:, None]) & (weights > 0)


def _ordered(x: tf.Tensor) -> tf.Tensor:
    """Maps float32 to unsigned 32-bit integers in the same order, as int64."""
    bits = tf.cast(tf.bitcast(x, tf.uint32), tf.int64)
    return tf.where(bits >= _SIGN, 2 * _SIGN - 1 - bits, bits + _SIGN)


def _shifted(keys: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(keys, tf.constant(bits, tf.int64))


def _sums(weights: tf.Tensor, digits: tf.Tensor) -> tf.Tensor:
    """Adds up the weights of each row [rows, part] by digit: [rows, digits]."""
    rows = weights.shape[0]
    segments = digits + tf.range(rows)[:, None] * _DIGITS
    sums = tf.math.unsorted_segment_sum(
        tf.reshape(weights, [-1]), tf.reshape(segments, [-1]), rows * _DIGITS
    )
    return tf.reshape(sums, [rows, _DIGITS])


# The status of a row.
_UNFINISHED, _ENDED, _AT_LIMIT = 0, 1, 2


class _Sequences(NamedTuple):
    """The sequence of each row, as tensors of the graph or as a processor's slices.

    Attributes:
      previous: int32 [batch], the last token.
      positions: int32 [batch], the position of the next token.
      written: int32 [batch, written], the tokens after the prompt, without EOS, zero-padded.
      sizes: int32 [batch], the number of tokens in `written`.
      log_probs: float32 [batch], the log-probability of the tokens in `written` and EOS.
      status: int32 [batch], see the constants above.
    """

    previous: Any
    positions: Any
    written: Any
    sizes: Any
    log_probs: Any
    status: Any


def greedy_or_sample(
    model: AutoregressiveModel,
    mesh: Mesh,
    rows: PromptBatch,
    state: DecodeState,
    options: DecodeOptions,
) -> dict[str, mtf.Tensor]:
    """Adds one token at a time until every row has ended or is at its limit.

    `state` is the result of `model.prefill`.

    Returns:
      these tensors, where `beam` has size 1:

      - `symbols`: int32 [batch, beam, written], the tokens after the prefix, zero-padded, without
        EOS.
      - `sizes`: int32 [batch, beam], the number of these tokens.
      - `log_probs` and `scores`: both float32 [batch, beam], the log-probability (natural
        logarithm) of the tokens, including EOS.
      - `ended`: int32 [batch, beam], 1 if EOS was chosen.
      - `steps`: int32 scalar, the number of decode steps.
    """
    batch = rows.batch

    def body(
        step: mtf.Tensor, now: _Sequences, state: DecodeState
    ) -> tuple[_Sequences, DecodeState]:
        logits, state = model.decode_step(mesh, now.previous, now.positions, state)
        may_end = mtf.greater_equal(mtf.broadcast(step, mtf.Shape([batch])), options.min_length)
        tokens, log_probs = ChooseOperation(
            logits, rows.keys, now.positions, may_end, model.vocab_sizes["targets"], options
        ).outputs
        after = mtf.slicewise(
            partial(_advanced, options.end_ids, rows.length.size),
            [step, tokens, log_probs, rows.limits, *now],
            [x.shape for x in now],
            [x.dtype for x in now],
            splittable_dims=[batch],
        )
        return _Sequences(*after), state

    steps, last = token_loop(
        rows, _start(rows), state, lambda now: mtf.equal(now.status, _UNFINISHED), body
    )
    beam = mtf.Dimension("beam", 1)
    by_beam = {
        "sizes": last.sizes,
        "log_probs": last.log_probs,
        "scores": last.log_probs,
        "ended": mtf.cast(mtf.equal(last.status, _ENDED), tf.int32),
    }
    return {
        "symbols": mtf.reshape(last.written, [batch, beam, rows.written]),
        **{name: mtf.reshape(tensor, [batch, beam]) for name, tensor in by_beam.items()},
        "steps": steps,
    }


def _start(rows: PromptBatch) -> _Sequences:
    """Returns empty sequences; a row with limit 0 is at its limit."""
    one_each = mtf.Shape([rows.batch])
    return _Sequences(
        previous=rows.previous,
        positions=rows.positions,
        written=mtf.zeros(rows.mesh, one_each + rows.written, tf.int32),
        sizes=mtf.zeros(rows.mesh, one_each, tf.int32),
        log_probs=mtf.zeros(rows.mesh, one_each),
        status=mtf.cast(mtf.less_equal(rows.limits, 0), tf.int32) * _AT_LIMIT,
    )


def _advanced(
    end_ids: Sequence[int],
    length: int,
    step: tf.Tensor,
    tokens: tf.Tensor,
    log_probs: tf.Tensor,
    limits: tf.Tensor,
    *before: tf.Tensor,
) -> _Sequences:
    """Adds the new tokens to a processor's unfinished rows, and updates their status."""
    now = _Sequences(*before)
    is_active = tf.equal(now.status, _UNFINISHED)
    is_end = is_any(tokens, end_ids)
    ends, is_written = is_active & is_end, is_active & ~is_end
    is_here = tf.equal(tf.range(length), step)[None, :] & is_written[:, None]
    is_full = is_written & (step + 1 >= limits)
    return _Sequences(
        previous=tf.where(is_active, tokens, now.previous),
        # The model still computes rows that are done, so their positions must be valid.
        positions=tf.minimum(now.positions + 1, length - 1),
        written=tf.where(is_here, tokens[:, None], now.written),
        sizes=now.sizes + tf.cast(is_written, tf.int32),
        log_probs=tf.where(is_active, now.log_probs + log_probs, now.log_probs),
        status=tf.where(ends, _ENDED, tf.where(is_full, _AT_LIMIT, now.status)),
    )
