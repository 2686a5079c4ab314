"""Beam search with a length penalty, for all rows of a batch and all their sequences at once.

As in tensor2tensor (`beam_search.py`), each row keeps the `beam_size` most probable unfinished
sequences and the `beam_size` best finished sequences. A row is done at its length limit, or when no
unfinished sequence can become better than the best finished sequence. With `return_beams`, a row is
done when none can become better than the worst of the kept finished sequences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.decoding.options import DecodeOptions
from t2tp.decoding.prompt_batch import PromptBatch
from t2tp.decoding.token_loop import token_loop
from t2tp.decoding.vocab_slice import VocabSlice, is_any, log_probs_of
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.models.autoregressive import AutoregressiveModel, DecodeState


class Candidates(NamedTuple):
    """Continuations of sequences, the most probable first: [batch, candidate].

    Attributes:
      log_probs: float32, log-probabilities of the continued sequences.
      parents: int32, the beam entry that each candidate extends.
      tokens: int32, the token that each candidate adds.
    """

    log_probs: Any
    parents: Any
    tokens: Any


class CandidatesOperation(Operation):
    """Finds the most probable extensions of sequences by one token; the outputs are `Candidates`.

    The vocabulary may be split.
    """

    signature = Signature(ordered=ALL, pads=True)

    def __init__(
        self,
        logits: mtf.Tensor,
        log_probs: mtf.Tensor,
        may_end: mtf.Tensor,
        vocab_size: int,
        end_ids: Sequence[int],
        count: int,
    ) -> None:
        """Adds the operation to the graph.

        Args:
          logits: float [batch, beam, vocab].
          log_probs: float32 [batch, beam], of the sequences; -infinity: there is no sequence.
          may_end: booleans [batch], whether an end token may be chosen.
          vocab_size: number of tokens; ids from this number on are padding and never chosen.
          end_ids: ids of the end tokens.
          count: number of candidates.
        """
        super().__init__([logits, log_probs, may_end], name="candidates")
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._count = count
        shape = mtf.Shape([*logits.shape.dims[:-2], mtf.Dimension("candidate", count)])
        self.set_outputs((shape, tf.float32), (shape, tf.int32), (shape, tf.int32))

    def lower(self, lowering: Lowering) -> None:
        """Finds the best candidates of each vocabulary slice, then the best of these."""
        logits, log_probs, may_end = self.inputs
        part = VocabSlice(lowering, logits)
        allowed = part.choosable(self._vocab_size, lowering.slice(may_end)[:, None], self._end_ids)
        values, ids, normalizers = part.top_tokens(allowed, self._count)
        batch, count = values.shape[0], values.shape[-1]
        here = log_probs_of(values, normalizers)
        sums = lowering.slice(log_probs)[..., None, None] + here  # [batch, beam, parts, count]
        best, indices = tf.math.top_k(tf.reshape(sums, [batch, -1]), self._count)
        # If few sequences are alive, candidates of probability 0 may be the vocabulary's padding.
        tokens = tf.reshape(tf.minimum(ids, self._vocab_size - 1), [batch, -1])
        lowering.set_slice(self.outputs[0], best)
        lowering.set_slice(self.outputs[1], indices // (part.parts * count))
        lowering.set_slice(self.outputs[2], tf.gather(tokens, indices, batch_dims=1))


_NONE = -math.inf  # the score of an empty entry of the beam


class _Beams(NamedTuple):
    """The sequences of each row, as tensors of the graph or as a processor's slices.

    A log-probability or score of -infinity means that there is no sequence.

    Attributes:
      alive: int32 [batch, beam, written], the tokens of the unfinished sequences, the most probable
        sequence first.
      log_probs: float32 [batch, beam], log-probabilities of the unfinished sequences.
      finished: int32 [batch, beam, written], the tokens of the finished sequences, without EOS, the
        best sequence first.
      finished_log_probs: float32 [batch, beam], log-probabilities of the finished sequences,
        including EOS.
      scores: float32 [batch, beam], `finished_log_probs` divided by the length penalty.
      sizes: int32 [batch, beam], number of tokens of each finished sequence.
      done: int32 [batch], 1 once the row no longer changes.
    """

    alive: Any
    log_probs: Any
    finished: Any
    finished_log_probs: Any
    scores: Any
    sizes: Any
    done: Any


def search(
    model: AutoregressiveModel,
    mesh: Mesh,
    rows: PromptBatch,
    state: DecodeState,
    options: DecodeOptions,
) -> dict[str, mtf.Tensor]:
    """Builds the beam search of a batch; `state` is the result of `model.prefill`.

    Returns:
      tensors like the results of `greedy_or_sample`, with `beam` sequences for each row, the best
      first. `scores` are `log_probs` divided by the length penalty; -infinity: there is no
      sequence. Unfinished sequences are returned only for rows without a finished one.
    """
    batch, beam = rows.batch, mtf.Dimension("beam", options.width)
    ranking = _Ranking(options, rows.length.size)

    def body(
        step: mtf.Tensor, now: _Beams, state_before: DecodeState
    ) -> tuple[_Beams, DecodeState]:
        positions = mtf.minimum(rows.positions + step, rows.length.size - 1)
        last = _last_tokens(step, now.alive, rows, beam)
        logits, state_after = model.decode_step(
            mesh, last, mtf.broadcast(positions, last.shape), state_before
        )
        may_end = mtf.greater_equal(mtf.broadcast(step, [batch]), options.min_length)
        # Each of the `width` sequences has at most one candidate for each end token. So among
        # `width * (1 + end tokens)` candidates, at least `width` are unfinished.
        continuations = CandidatesOperation(
            logits,
            now.log_probs,
            may_end,
            model.vocab_sizes["targets"],
            options.end_ids,
            max(2, 1 + len(options.end_ids)) * beam.size,
        ).outputs
        *advanced, parents = mtf.slicewise(
            lambda step, limits, *tensors: ranking.advance(
                step, limits, Candidates(*tensors[:3]), _Beams(*tensors[3:])
            ),
            [step, rows.limits, *continuations, *now],
            [*(x.shape for x in now), last.shape],
            [*(x.dtype for x in now), tf.int32],
            splittable_dims=[batch],
        )
        # A sequence extends its parent, so it gets a copy of the parent's cache. Tensors that the
        # model did not change are equal for all sequences of a row, and are not copied.
        next_state = {
            name: state_after[name]
            if state_after[name] is state_before[name] or beam not in state_after[name].shape.dims
            else _of_parents(state_after[name], parents, batch, beam)
            for name in state_before
        }
        return _Beams(*advanced), next_state

    state = {
        name: _for_each(tensor, batch, beam) if batch in tensor.shape.dims else tensor
        for name, tensor in state.items()
    }
    steps, last = token_loop(
        rows, _start(rows, beam), state, lambda now: mtf.equal(now.done, 0), body
    )
    outputs = mtf.slicewise(
        lambda limits, *beams: ranking.result(limits, _Beams(*beams)),
        [rows.limits, *last],
        [last.finished.shape, *[last.scores.shape] * 4],
        [tf.int32, tf.int32, tf.float32, tf.float32, tf.int32],
        splittable_dims=[batch],
    )
    names = ["symbols", "sizes", "log_probs", "scores", "ended"]
    return {**dict(zip(names, outputs, strict=True)), "steps": steps}


def _start(rows: PromptBatch, beam: mtf.Dimension) -> _Beams:
    """Returns one empty sequence per row and no finished ones; a row with limit 0 is done.

    The beam's other entries begin with the log-probability -infinity. Otherwise the first
    candidates would be copies of the same sequence.
    """
    mesh, one_each = rows.mesh, mtf.Shape([rows.batch, beam])
    first = mtf.constant(mesh, [0.0] + [_NONE] * (beam.size - 1), [beam])
    nothing = mtf.zeros(mesh, one_each + rows.written, tf.int32)
    no_scores = mtf.constant(mesh, _NONE, one_each, tf.float32)
    no_sizes = mtf.zeros(mesh, one_each, tf.int32)
    return _Beams(
        alive=nothing,
        log_probs=mtf.broadcast(first, one_each),
        finished=nothing,
        finished_log_probs=no_scores,
        scores=no_scores,
        sizes=no_sizes,
        done=mtf.cast(mtf.less_equal(rows.limits, 0), tf.int32),
    )


def _last_tokens(
    step: mtf.Tensor, alive: mtf.Tensor, rows: PromptBatch, beam: mtf.Dimension
) -> mtf.Tensor:
    """Returns each sequence's last token [batch, beam]; in step 0, the prompt's last token."""

    def last(step: tf.Tensor, alive: tf.Tensor, previous: tf.Tensor) -> tf.Tensor:
        tokens = tf.gather(alive, tf.maximum(step - 1, 0), axis=2)
        return tf.where(step > 0, tokens, previous[:, None])

    shape = mtf.Shape([rows.batch, beam])
    inputs = [step, alive, rows.previous]
    return mtf.slicewise(last, inputs, shape, tf.int32, splittable_dims=[rows.batch])


def _for_each(tensor: mtf.Tensor, batch: mtf.Dimension, beam: mtf.Dimension) -> mtf.Tensor:
    """Copies a state tensor for each sequence: [..., batch, ...] -> [..., batch, beam, ...]."""
    dims = list(tensor.shape.dims)
    dims.insert(dims.index(batch) + 1, beam)
    return mtf.broadcast(tensor, dims)


def _of_parents(
    tensor: mtf.Tensor, parents: mtf.Tensor, batch: mtf.Dimension, beam: mtf.Dimension
) -> mtf.Tensor:
    """Returns the state of each new sequence's parent."""
    beam_axes = [tensor.shape.dims.index(dim) for dim in (batch, beam)]

    def pick(x: tf.Tensor, parents: tf.Tensor) -> tf.Tensor:
        if beam_axes == [0, 1]:
            return tf.gather(x, parents, batch_dims=1)
        order = [*beam_axes, *(axis for axis in range(x.shape.rank) if axis not in beam_axes)]
        picked = tf.gather(tf.transpose(x, order), parents, batch_dims=1)
        return tf.transpose(picked, [order.index(axis) for axis in range(x.shape.rank)])

    splittable = [dim for dim in tensor.shape.dims if dim != beam]
    return mtf.slicewise(pick, [tensor, parents], tensor.shape, tensor.dtype, splittable)


@dataclass(frozen=True)
class _Ranking:
    """Decides which sequences stay in the beams, on a processor's slices."""

    options: DecodeOptions
    length: int

    def advance(
        self, step: tf.Tensor, limits: tf.Tensor, candidates: Candidates, now: _Beams
    ) -> tuple[tf.Tensor, ...]:
        """Sorts the candidates into unfinished and finished sequences.

        Returns:
          the fields of the next `_Beams`, and the parents: int32 [batch, beam], the beam entry that
          each unfinished sequence extends.
        """
        ends = is_any(candidates.tokens, self.options.end_ids)
        log_probs, alive, parents = self._unfinished(step, candidates, now, ends)
        after = self._finish(step, candidates, now, ends)._replace(log_probs=log_probs, alive=alive)
        # A score is a log-probability divided by the penalty. A sequence's log-probability is at
        # most 0, and never rises. The penalty is largest at the limit, because alpha is at least 0,
        # and a larger penalty moves the score towards 0. So no unfinished sequence can end with a
        # score above `best_possible`.
        best_possible = log_probs[:, 0] / self._penalty(limits)
        # If only the best sequence is returned, the search can end once no unfinished sequence can
        # beat the best finished one.
        to_beat = tf.reduce_min if self.options.return_beams else tf.reduce_max
        is_settled = to_beat(after.scores, -1) >= best_possible
        # The loop goes on until all rows of the processor are done. Meanwhile, a row that is done
        # must not change: otherwise its result would depend on the other rows.
        is_done = tf.not_equal(now.done, 0)
        beams = [
            tf.where(tf.reshape(is_done, [-1] + [1] * (new.shape.rank - 1)), old, new)
            for old, new in zip(now[:-1], after[:-1], strict=True)
        ]
        done = is_done | is_settled | (step + 1 >= limits)
        return (*beams, tf.cast(done, tf.int32), parents)

    def _finish(
        self, step: tf.Tensor, candidates: Candidates, now: _Beams, ends: tf.Tensor
    ) -> _Beams:
        """Keeps the best sequences: the finished ones compete with candidates that end now."""
        ended = tf.where(ends, candidates.log_probs, _NONE)
        all_scores = tf.concat([now.scores, ended / self._penalty(step + 1)], -1)
        scores, chosen = tf.math.top_k(all_scores, self.options.width)

        def best(finished: tf.Tensor, ending: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.concat([finished, ending], 1), chosen, batch_dims=1)

        # EOS is not written, so a candidate that ends has the tokens of its parent.
        return now._replace(
            scores=scores,
            finished=best(now.finished, tf.gather(now.alive, candidates.parents, batch_dims=1)),
            finished_log_probs=best(now.finished_log_probs, ended),
            sizes=best(now.sizes, tf.fill(candidates.parents.shape, step)),
        )

    def _unfinished(
        self, step: tf.Tensor, candidates: Candidates, now: _Beams, ends: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Returns log-probabilities, tokens and parents of the best unfinished candidates."""
        unfinished = tf.where(ends, _NONE, candidates.log_probs)
        log_probs, chosen = tf.math.top_k(unfinished, self.options.width)
        parents = tf.gather(candidates.parents, chosen, batch_dims=1)
        tokens = tf.gather(candidates.tokens, chosen, batch_dims=1)
        is_here = tf.equal(tf.range(self.length), step)
        before = tf.gather(now.alive, parents, batch_dims=1)
        return log_probs, tf.where(is_here, tokens[..., None], before), parents

    def _penalty(self, size: tf.Tensor) -> tf.Tensor:
        """Returns the divisor of the log-probability of `size` tokens, EOS included."""
        return ((5.0 + tf.cast(size, tf.float32)) / 6.0) ** self.options.alpha

    def result(self, limits: tf.Tensor, last: _Beams) -> tuple[tf.Tensor, ...]:
        """Returns each row's finished sequences, or the unfinished ones if there are none."""
        has_ended = tf.reduce_any(tf.math.is_finite(last.scores), -1, keepdims=True)
        full = tf.maximum(limits, 0)[:, None] + tf.zeros_like(last.sizes)
        return (
            tf.where(has_ended[..., None], last.finished, last.alive),
            tf.where(has_ended, last.sizes, full),
            tf.where(has_ended, last.finished_log_probs, last.log_probs),
            tf.where(has_ended, last.scores, last.log_probs / self._penalty(full)),
            tf.cast(has_ended & tf.math.is_finite(last.scores), tf.int32),
        )
