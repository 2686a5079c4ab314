"""Beam search with a length penalty, all rows of a batch and all their sequences at a time.

As in tensor2tensor (`beam_search.py`): of each row the `beam_size` most probable unfinished
sequences go on, and the `beam_size` best finished ones are kept. A row is done when no unfinished
sequence could become better than the best of these, or than the worst if all are wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.decoding.candidates import candidates
from t2tp.decoding.options import DecodeOptions
from t2tp.decoding.rows import Rows, most_steps
from t2tp.mesh.program import Mesh
from t2tp.models.autoregressive import AutoregressiveModel, State

_NONE = -math.inf  # the score of a place of the beam that is empty


def search(
    model: AutoregressiveModel, mesh: Mesh, rows: Rows, state: State, options: DecodeOptions
) -> dict[str, mtf.Tensor]:
    """Finds the best sequences.

    Args:
      model: predicts the symbols.
      mesh: the program's mesh.
      rows: where the rows begin, and how far they may go.
      state: of `model.begin`.
      options: width, length penalty, end.

    Returns:
      `symbols`, int32 [batch, beam, written], those after the prefix, without the end, then zeros,
      the best sequences first; `sizes`, int32 [batch, beam], how many; `log_probs`, float32 [batch,
      beam], of symbols and end; `scores`, these divided by the length penalty, -infinity where the
      beam has no sequence; `ended`, int32 [batch, beam], 1 if the sequence has an end (a row has
      sequences without one only if none has ended); `steps`, an int32 scalar.
    """
    batch, beam = rows.batch, mtf.Dimension("beam", options.width)
    beams = _Beams(options, rows.length.size)
    shapes, dtypes = beams.variables(batch, beam, rows.written)
    loop = _Loop(model, mesh, rows, options, beams, tuple(state), shapes, dtypes)
    state = {
        name: _for_each(tensor, batch, beam) if batch in tensor.shape.dims else tensor
        for name, tensor in state.items()
    }
    start = beams.start(mesh, rows, shapes)
    zero = mtf.zeros(mesh, mtf.Shape([]), tf.int32)
    results = mtf.while_loop(
        lambda step, *values: mtf.equal(values[len(shapes) - 1], 0),
        loop.body,
        [zero, *start, *state.values()],
    )
    steps, own = results[0], results[1 : 1 + len(shapes)]
    outputs = mtf.slicewise(
        beams.result,
        [rows.limits, *own],
        [shapes[0], *[shapes[1]] * 4],
        [tf.int32, tf.int32, tf.float32, tf.float32, tf.int32],
        splittable_dims=[batch],
    )
    names = ["symbols", "sizes", "log_probs", "scores", "ended"]
    return {**dict(zip(names, outputs, strict=True)), "steps": most_steps(steps, batch)}


@dataclass(frozen=True)
class _Loop:
    """The loop over positions.

    Attributes:
      beams: what is done to the sequences.
      names: of the model's state.
      shapes: of the variables of `beams`.
      dtypes: likewise.
    """

    model: AutoregressiveModel
    mesh: Mesh
    rows: Rows
    options: DecodeOptions
    beams: _Beams
    names: tuple[str, ...]
    shapes: list[mtf.Shape]
    dtypes: list[tf.DType]

    def body(self, step: mtf.Tensor, *values: mtf.Tensor) -> list[mtf.Tensor]:
        """Makes all sequences one symbol longer; the loop's next values."""
        rows, one_each = self.rows, self.shapes[1]
        batch, beam = one_each.dims
        own = values[: len(self.shapes)]
        before = dict(zip(self.names, values[len(own) :], strict=True))
        alive, log_probs = own[:2]
        positions = mtf.minimum(rows.positions + step, rows.length.size - 1)
        last = _last_symbols(step, alive, rows, beam)
        logits, after = self.model.step(self.mesh, last, mtf.broadcast(positions, one_each), before)
        may_end = mtf.greater_equal(mtf.broadcast(step, [batch]), self.options.min_length)
        found = candidates(
            logits,
            log_probs,
            may_end,
            self.model.vocab_sizes["targets"],
            self.options.eos_id,
            2 * beam.size,
        )
        *advanced, parents = mtf.slicewise(
            self.beams.advance,
            [step, rows.limits, *found, *own],
            [*self.shapes, one_each],
            [*self.dtypes, tf.int32],
            splittable_dims=[batch],
        )
        # What the model did not change is the same for all sequences of a row.
        kept = [
            after[name]
            if after[name] is before[name] or beam not in after[name].shape.dims
            else _of_parents(after[name], parents, batch, beam)
            for name in self.names
        ]
        return [step + 1, *advanced, *kept]


def _last_symbols(
    step: mtf.Tensor, alive: mtf.Tensor, rows: Rows, beam: mtf.Dimension
) -> mtf.Tensor:
    """The last symbol of each sequence [batch, beam], at first that of the row's prefix."""

    def last(step: tf.Tensor, alive: tf.Tensor, previous: tf.Tensor) -> tf.Tensor:
        symbols = tf.gather(alive, tf.maximum(step - 1, 0), axis=2)
        return tf.where(step > 0, symbols, previous[:, None])

    shape = mtf.Shape([rows.batch, beam])
    inputs = [step, alive, rows.previous]
    return mtf.slicewise(last, inputs, shape, tf.int32, splittable_dims=[rows.batch])


def _for_each(tensor: mtf.Tensor, batch: mtf.Dimension, beam: mtf.Dimension) -> mtf.Tensor:
    """A copy of a state for each sequence: [..., batch, ...] -> [..., batch, beam, ...]."""
    dims = list(tensor.shape.dims)
    dims.insert(dims.index(batch) + 1, beam)
    return mtf.broadcast(tensor, dims)


def _of_parents(
    tensor: mtf.Tensor, parents: mtf.Tensor, batch: mtf.Dimension, beam: mtf.Dimension
) -> mtf.Tensor:
    """The state of the sequences that the new ones continue."""
    places = [tensor.shape.dims.index(dim) for dim in (batch, beam)]

    def pick(x: tf.Tensor, parents: tf.Tensor) -> tf.Tensor:
        if places == [0, 1]:
            return tf.gather(x, parents, batch_dims=1)
        order = [*places, *(axis for axis in range(x.shape.rank) if axis not in places)]
        picked = tf.gather(tf.transpose(x, order), parents, batch_dims=1)
        return tf.transpose(picked, [order.index(axis) for axis in range(x.shape.rank)])

    splittable = [dim for dim in tensor.shape.dims if dim != beam]
    return mtf.slicewise(pick, [tensor, parents], tensor.shape, tensor.dtype, splittable)


class _Beams:
    """The unfinished and finished sequences of each row, on a processor's slices of them.

    The loop's variables are: alive [batch, beam, written] (symbols of the unfinished sequences),
    log_probs [batch, beam] (-infinity: no sequence), finished [batch, beam, written], their
    log-probabilities, scores and sizes [batch, beam], done [batch] (1: the row is finished with).
    """

    def __init__(self, options: DecodeOptions, length: int) -> None:
        self._beam_size = options.width
        self._alpha = options.alpha
        self._eos_id = options.eos_id
        self._length = length
        # Of a row whose best sequence alone is wanted only that one has to be certain.
        self._least_wanted = tf.reduce_min if options.return_beams else tf.reduce_max

    def variables(
        self, batch: mtf.Dimension, beam: mtf.Dimension, written: mtf.Dimension
    ) -> tuple[list[mtf.Shape], list[tf.DType]]:
        """Shapes and dtypes of the loop's variables."""
        sequences, one_each = mtf.Shape([batch, beam, written]), mtf.Shape([batch, beam])
        shapes = [sequences, one_each, sequences, one_each, one_each, one_each, mtf.Shape([batch])]
        dtypes = [tf.int32, tf.float32, tf.int32, tf.float32, tf.float32, tf.int32, tf.int32]
        return shapes, dtypes

    def start(self, mesh: Mesh, rows: Rows, shapes: list[mtf.Shape]) -> list[mtf.Tensor]:
        """The loop's first values: one sequence a row, nothing finished."""
        sequences, one_each = shapes[:2]
        first = mtf.constant(mesh, [0.0] + [_NONE] * (self._beam_size - 1), one_each.dims[1:])
        nothing = mtf.zeros(mesh, sequences, tf.int32)
        no_scores = mtf.constant(mesh, _NONE, one_each, tf.float32)
        no_sizes = mtf.zeros(mesh, one_each, tf.int32)
        done = mtf.cast(mtf.less_equal(rows.limits, 0), tf.int32)
        log_probs = mtf.broadcast(first, one_each)
        return [nothing, log_probs, nothing, no_scores, no_scores, no_sizes, done]

    def penalty(self, size: tf.Tensor) -> tf.Tensor:
        """What the log-probability of a sequence of `size` symbols and ends is divided by."""
        return ((5.0 + tf.cast(size, tf.float32)) / 6.0) ** self._alpha

    def advance(
        self,
        step: tf.Tensor,
        limits: tf.Tensor,
        sums: tf.Tensor,
        parents: tf.Tensor,
        symbols: tf.Tensor,
        alive: tf.Tensor,
        log_probs: tf.Tensor,
        finished: tf.Tensor,
        finished_log_probs: tf.Tensor,
        scores: tf.Tensor,
        sizes: tf.Tensor,
        done: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Sorts the candidates into unfinished and finished sequences.

        Returns:
          the loop's next values, and the place in the beam of what each unfinished one continues.
        """
        is_done = tf.not_equal(done, 0)
        ends = tf.equal(symbols, self._eos_id)

        ended_sums = tf.where(ends, sums, _NONE)
        all_scores = tf.concat([scores, ended_sums / self.penalty(step + 1)], -1)
        new_scores, places = tf.math.top_k(all_scores, self._beam_size)
        all_finished = tf.concat([finished, tf.gather(alive, parents, batch_dims=1)], 1)
        new_finished = tf.gather(all_finished, places, batch_dims=1)
        all_log_probs = tf.concat([finished_log_probs, ended_sums], -1)
        new_finished_log_probs = tf.gather(all_log_probs, places, batch_dims=1)
        all_sizes = tf.concat([sizes, tf.fill(parents.shape, step)], -1)
        new_sizes = tf.gather(all_sizes, places, batch_dims=1)

        new_log_probs, places = tf.math.top_k(tf.where(ends, _NONE, sums), self._beam_size)
        parents = tf.gather(parents, places, batch_dims=1)
        written = tf.gather(symbols, places, batch_dims=1)
        is_here = tf.equal(tf.range(self._length), step)
        going_on = tf.gather(alive, parents, batch_dims=1)
        new_alive = tf.where(is_here, written[..., None], going_on)

        best_possible = new_log_probs[:, 0] / self.penalty(limits)
        is_settled = self._least_wanted(new_scores, -1) >= best_possible
        new_done = is_done | is_settled | (step + 1 >= limits)
        one, all_ = is_done[:, None], is_done[:, None, None]
        return (
            tf.where(all_, alive, new_alive),
            tf.where(one, log_probs, new_log_probs),
            tf.where(all_, finished, new_finished),
            tf.where(one, finished_log_probs, new_finished_log_probs),
            tf.where(one, scores, new_scores),
            tf.where(one, sizes, new_sizes),
            tf.cast(new_done, tf.int32),
            parents,
        )

    def result(
        self,
        limits: tf.Tensor,
        alive: tf.Tensor,
        log_probs: tf.Tensor,
        finished: tf.Tensor,
        finished_log_probs: tf.Tensor,
        scores: tf.Tensor,
        sizes: tf.Tensor,
        done: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """The finished sequences of each row; where there are none, the unfinished ones."""
        del done
        has_ended = tf.reduce_any(tf.math.is_finite(scores), -1, keepdims=True)
        full = tf.maximum(limits, 0)[:, None] + tf.zeros_like(sizes)
        return (
            tf.where(has_ended[..., None], finished, alive),
            tf.where(has_ended, sizes, full),
            tf.where(has_ended, finished_log_probs, log_probs),
            tf.where(has_ended, scores, log_probs / self.penalty(full)),
            tf.cast(has_ended & tf.math.is_finite(scores), tf.int32),
        )
