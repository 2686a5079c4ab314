"""Greedy decoding and drawing: of each row one sequence is followed."""

from __future__ import annotations

import tensorflow as tf

from t2tp import mtf
from t2tp.decoding.choice import choose
from t2tp.decoding.options import DecodeOptions
from t2tp.decoding.rows import Rows, most_steps
from t2tp.mesh.program import Mesh
from t2tp.models.autoregressive import AutoregressiveModel, State


def follow_one_path(
    model: AutoregressiveModel, mesh: Mesh, rows: Rows, state: State, options: DecodeOptions
) -> dict[str, mtf.Tensor]:
    """Writes symbol after symbol, until every row has ended or is at its limit.

    Args:
      model: predicts the symbols.
      mesh: the program's mesh.
      rows: where the rows begin, and how far they may go.
      state: of `model.begin`.
      options: how symbols are chosen.

    Returns:
      `symbols`, int32 [batch, beam=1, written], those after the prefix, without the end, then
      zeros; `sizes`, int32 [batch, beam], how many; `log_probs` and `scores`, both the natural
      logarithm of the probability of symbols and end, float32 [batch, beam]; `ended`, int32 [batch,
      beam], 1 if the end was chosen; `steps`, an int32 scalar.
    """
    batch, names = rows.batch, list(state)
    walk = _Walk(options, rows.length.size)
    row_shape = mtf.Shape([batch])
    buffer_shape = mtf.Shape([batch, rows.written])
    shapes = [row_shape, row_shape, buffer_shape, row_shape, row_shape, row_shape]
    dtypes = [tf.int32, tf.int32, tf.int32, tf.int32, tf.float32, tf.int32]

    def body(step: mtf.Tensor, *values: mtf.Tensor) -> list[mtf.Tensor]:
        own, kept = values[:6], dict(zip(names, values[6:], strict=True))
        previous, positions = own[:2]
        logits, kept = model.step(mesh, previous, positions, kept)
        may_end = mtf.greater_equal(mtf.broadcast(step, row_shape), options.min_length)
        symbols, log_probs = choose(
            logits, rows.keys, positions, may_end, model.vocab_sizes["targets"], options
        )
        own = mtf.slicewise(
            walk.advance,
            [step, symbols, log_probs, rows.limits, *own],
            shapes,
            dtypes,
            splittable_dims=[batch],
        )
        return [step + 1, *own, *(kept[name] for name in names)]

    status = mtf.cast(mtf.less_equal(rows.limits, 0), tf.int32) * _AT_LIMIT
    results = mtf.while_loop(
        lambda step, *values: mtf.equal(values[5], _GOING),
        body,
        [
            mtf.zeros(mesh, mtf.Shape([]), tf.int32),
            rows.previous,
            rows.positions,
            mtf.zeros(mesh, buffer_shape, tf.int32),
            mtf.zeros(mesh, row_shape, tf.int32),
            mtf.zeros(mesh, row_shape),
            status,
            *(state[name] for name in names),
        ],
    )
    steps, _, _, symbols, sizes, log_probs, status = results[:7]
    beam = mtf.Dimension("beam", 1)
    ended = mtf.cast(mtf.equal(status, _ENDED), tf.int32)
    found = {"sizes": sizes, "log_probs": log_probs, "scores": log_probs, "ended": ended}
    return {
        "symbols": mtf.reshape(symbols, [batch, beam, rows.written]),
        **{name: mtf.reshape(tensor, [batch, beam]) for name, tensor in found.items()},
        "steps": most_steps(steps, batch),
    }


# What a row is doing.
_GOING, _ENDED, _AT_LIMIT = 0, 1, 2


class _Walk:
    """What a step does to the rows, on a processor's slices of them."""

    def __init__(self, options: DecodeOptions, length: int) -> None:
        self._eos_id = options.eos_id
        self._length = length

    def advance(
        self,
        step: tf.Tensor,
        symbols: tf.Tensor,
        log_probs: tf.Tensor,
        limits: tf.Tensor,
        previous: tf.Tensor,
        positions: tf.Tensor,
        written: tf.Tensor,
        sizes: tf.Tensor,
        sums: tf.Tensor,
        status: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Writes the symbols of the rows that go on; the loop's next values."""
        goes_on = tf.equal(status, _GOING)
        ends = goes_on & tf.equal(symbols, self._eos_id)
        is_written = goes_on & tf.not_equal(symbols, self._eos_id)
        is_here = tf.equal(tf.range(self._length), step)[None, :] & is_written[:, None]
        written = tf.where(is_here, symbols[:, None], written)
        sizes += tf.cast(is_written, tf.int32)
        sums = tf.where(goes_on, sums + log_probs, sums)
        is_full = is_written & (step + 1 >= limits)
        status = tf.where(ends, _ENDED, tf.where(is_full, _AT_LIMIT, status))
        previous = tf.where(goes_on, symbols, previous)
        positions = tf.minimum(positions + 1, self._length - 1)
        return previous, positions, written, sizes, sums, status
