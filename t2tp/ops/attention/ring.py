"""Ring attention: devices pass keys and values around a ring while they compute scores.

H. Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context"
(arXiv:2310.01889). Each processor begins with the keys of its slice of the sequence. While its
queries attend to these keys, the processor sends the keys on and receives the next ones, so it
never holds more than two slices. With three processors:

    step        0       1       2
    processor 0 keys 0  keys 2  keys 1
    processor 1 keys 1  keys 0  keys 2
    processor 2 keys 2  keys 1  keys 0

In the backward pass the gradients w.r.t. keys and values follow the keys around the ring, and each
processor adds its part.

In causal attention keys and queries are in head-tail order (`t2tp.lowering.head_tail`), so that
each step is equal work for all processors.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.mesh.collectives import head_and_tail
from t2tp.ops.attention import blockwise
from t2tp.ops.attention.blocks import KeyRange
from t2tp.ops.attention.score_terms import AllGradients, ScoreTerms

# The dimension of the positions in [batch, kv_heads, keys, d_kv].
_POSITIONS = 2


class Visiting(NamedTuple):
    """The slice of the memory (keys and values) that a processor currently holds.

    Attributes:
      kv: keys [batch, kv_heads, keys, d_kv] and values [batch, kv_heads, keys, d_v].
      segments: a tuple of one tensor, int32 [batch, keys]; empty if there are no segments.
    """

    kv: tuple[tf.Tensor, tf.Tensor]
    segments: tuple[tf.Tensor, ...]


class Ring:
    """The slices of keys and values that go around the `count` processors along a mesh axis."""

    def __init__(
        self, mesh_impl: SpmdMeshImpl, axis: int, begin: Visiting, part_size: int, key_block: int
    ) -> None:
        """Begins with the processor's own slice.

        `part_size` is the number of keys in each part of a slice: one part, or two in head-tail
        order. `key_block` is the number of keys in a block.
        """
        self._collectives = mesh_impl.collectives
        self._axis = axis
        self.count = mesh_impl.shape[axis].size
        self.begin = begin
        self._part_size = part_size
        self._key_block = key_block

    def parts(
        self, visiting: Visiting, step: tf.Tensor
    ) -> list[tuple[tf.Tensor, tf.Tensor, KeyRange, list[tf.Tensor]]]:
        """Returns the parts of `visiting`, the slice that this processor holds at a step.

        A part consists of its keys and its values in blocks (see `blockwise.cut`), the positions of
        its keys, and its segments, as in `Visiting`.
        """
        owner = (self._collectives.coordinate(self._axis) - step) % self.count
        is_head_tail = visiting.kv[0].shape[_POSITIONS] > self._part_size
        places = [*head_and_tail(owner, self.count)] if is_head_tail else [owner]
        cut = [
            tf.split(x, len(places), dim)
            for x, dim in [
                *((x, _POSITIONS) for x in visiting.kv),
                *((x, 1) for x in visiting.segments),
            ]
        ]
        parts, size = [], self._part_size
        for place, k, v, *segments in zip(places, *cut, strict=True):
            k, v = (blockwise.cut(x, self._key_block) for x in (k, v))
            parts.append((k, v, KeyRange(size, place * size), segments))
        return parts

    def passed_on(self, x: tf.Tensor) -> tf.Tensor:
        """Sends `x` to the next processor, and returns the previous processor's `x`."""
        source = [(place - 1) % self.count for place in range(self.count)]
        return self._collectives.permute(x, self._axis, source)

    def next(self, visiting: Visiting, step: tf.Tensor) -> Visiting:
        """Returns the slice of the next step. In the last step, the slice is not passed on."""
        return tf.nest.map_structure(lambda x: self.passed_if(step < self.count - 1, x), visiting)

    def passed_if(self, condition: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Passes `x` on if a condition is true.

        The condition must be true in all steps except one, and be the same on all processors.
        """
        with self._collectives.repeated(self.count - 1):
            return tf.cond(condition, lambda: self.passed_on(x), lambda: x)


def forward(
    qs: Sequence[tf.Tensor], ring: Ring, terms: Sequence[ScoreTerms]
) -> list[tuple[tf.Tensor, ...]]:
    """Computes `blockwise.forward` of each part of the scaled queries, with all keys and values."""

    def step(t: tf.Tensor, here: Visiting, states: list[blockwise.Attended]) -> tuple:
        coming = ring.next(here, t)
        for k, v, keys, segments in ring.parts(here, t):
            states = [
                blockwise.attended(q, k, v, of_part.of_keys(keys, *segments), state)
                for q, of_part, state in zip(qs, terms, states, strict=True)
            ]
        return t + 1, coming, states

    d_v = ring.begin.kv[1].shape[-1]
    start = [blockwise.Attended.nothing(q, d_v, terms[0].query_block) for q in qs]
    *_, states = _loop(ring, step, (ring.begin, start))
    return [
        blockwise.results(state, q, of_part)
        for state, q, of_part in zip(states, qs, terms, strict=True)
    ]


def backward(
    by_query: Sequence[Sequence[tf.Tensor]], ring: Ring, terms: Sequence[ScoreTerms]
) -> AllGradients:
    """Computes the gradients w.r.t. each part's q and bias, and w.r.t. this processor's k and v.

    The gradients w.r.t. k and v are at least float32. `by_query` has `q`, `mean`, `log` and `dy` of
    each part, as for `blockwise.backward`.
    """
    ours, start = blockwise.start_backward(by_query, terms)

    def step(
        t: tf.Tensor, here: Visiting, d_kv: list[tf.Tensor], sums: list[blockwise.BlockSums]
    ) -> tuple:
        coming = ring.next(here, t)
        # A step adds to the gradients of its slice, so these gradients are passed on after the
        # step. The slice itself is passed on during the step.
        d_kv = [ring.passed_if(t > 0, x) for x in d_kv]
        d_parts = []
        for k, v, keys, segments in ring.parts(here, t):
            with_keys = [of_part.of_keys(keys, *segments) for of_part in terms]
            sums, d_part = blockwise.with_gradients(sums, ours, k, v, with_keys)
            d_parts.append([blockwise.joined(x, keys.size) for x in d_part])
        own = [tf.concat(parts, _POSITIONS) for parts in zip(*d_parts, strict=True)]
        return t + 1, coming, [a + b for a, b in zip(d_kv, own, strict=True)], sums

    no_gradient = [tf.zeros(x.shape) for x in ring.begin.kv]
    *_, d_kv, sums = _loop(ring, step, (ring.begin, no_gradient, start))
    d_k, d_v = (ring.passed_on(x) for x in d_kv)
    return blockwise.query_gradients(sums, ours), (d_k, d_v)


def _loop(ring: Ring, step: Callable, start: tuple) -> tuple:
    """Runs one step per slice, one at a time, because parallel steps would hold more slices."""
    return tf.while_loop(
        lambda t, *_: t < ring.count, step, (tf.constant(0), *start), parallel_iterations=1
    )
