"""Greedy decoding and sampling: one sequence per row."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.decoding.options import DecodeOptions
from t2tp.decoding.prompt_batch import PromptBatch
from t2tp.decoding.sampling import ChooseOperation
from t2tp.decoding.token_loop import token_loop
from t2tp.decoding.vocab_slice import is_any
from t2tp.models.autoregressive import AutoregressiveModel, DecodeState

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
