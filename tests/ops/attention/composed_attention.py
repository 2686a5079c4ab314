"""Attention in plain TensorFlow, in float64, with the whole score matrix."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def composed_attention(*, causal=False, window=None, max_distance=0, soft_cap=0.0, kept=None):
    """Returns attention as a function of named arrays.

    The function's arguments are q [b, h, t, d], k and v [b, g, m, d], and `segments`,
    `memory_segments`, `table`, `sinks`.

    Args:
      causal: see `attention`.
      window: see `attention`.
      max_distance: maximum distance for the buckets of `table`.
      soft_cap: see `attention`.
      kept: factors of the weights, [b, h, t, m].
    """

    def attend(q, k, v, segments=None, memory_segments=None, table=None, sinks=None):
        k, v = (tf.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        scores = tf.einsum("bhtd,bhmd->bhtm", q, k) / math.sqrt(q.shape[-1])
        if soft_cap:
            scores = soft_cap * tf.tanh(scores / soft_cap)
        if table is not None:
            both_ways = not causal
            number = [
                [bucket(m - t, table.shape[1], max_distance, both_ways) for m in range(k.shape[2])]
                for t in range(q.shape[2])
            ]
            scores += tf.gather(table, number, axis=1)
        is_seen = seen(scores.shape, segments, memory_segments, causal, window)
        # With -inf, the softmax of a query without keys, and its gradient, would be NaN.
        scores = tf.where(tf.cast(is_seen, bool), scores, -1e300)
        if sinks is not None:
            column = tf.broadcast_to(sinks[:, None, None], [*scores.shape[:-1], 1])
            scores = tf.concat([scores, column], -1)
        weights = tf.nn.softmax(scores)[..., : k.shape[2]] * is_seen
        return tf.einsum("bhtm,bhmd->bhtd", weights * (1.0 if kept is None else kept), v)

    return attend


def seen(shape, segments, memory_segments, causal, window) -> np.ndarray:
    """Returns whether each query attends to each key: [b, 1, t, m], 1.0 or 0.0."""
    query, key = np.ogrid[: shape[2], : shape[3]]
    is_seen = np.ones([shape[0], 1, *shape[2:]], bool)
    if causal:
        is_seen &= key <= query
    if window is not None:
        is_seen &= abs(query - key) < window
    if segments is not None:
        ours = np.asarray(segments)
        theirs = ours if memory_segments is None else np.asarray(memory_segments)
        is_seen &= ours[:, None, :, None] == theirs[:, None, None, :]
    return is_seen.astype(np.float64)


def bucket(distance: int, buckets: int, max_distance: int, both_ways: bool) -> int:
    """Returns T5's bucket of a distance."""
    first = 0
    if both_ways:
        buckets //= 2
        first = buckets if distance > 0 else 0
        back = abs(distance)
    else:
        back = max(-distance, 0)
    exact = buckets // 2
    if back < exact:
        return first + back
    far = exact + math.log(back / exact) / math.log(max_distance / exact) * (buckets - exact)
    return first + min(int(far), buckets - 1)


def visible_blocks(space: Sequence[int], block: Sequence[int]) -> np.ndarray:
    """Returns a matrix: whether the position of a row attends to the position of a column."""
    place = np.arange(math.prod(space))
    (height, width), columns = [1, *block][-2:], space[-1]
    row, column = place // columns // height, place % columns // width
    up, left = row[:, None] - row[None, :], column[:, None] - column[None, :]
    near = (up == 0) & ((left == 0) | (left == 1))
    if len(space) == 2:
        near |= (up == 1) & (abs(left) <= 1)
    return near & (place[None, :] <= place[:, None])
