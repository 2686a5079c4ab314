"""Packed rows as cuDNN's kernels read them: the length and the first position of each segment.

The kernels see a batch as one sequence of tokens, row after row, in which a segment is a run of
equal numbers. Two rows `1 1 2` and `1 2 2` with at most 2 segments each have 4 runs: lengths 2 1 1
2, offsets 0 2 3 4 6. A batch with fewer runs has runs of length 0 at its end. The host chooses the
number of segments of a row (`t2tp.program.segments`): it is part of the compiled program.
"""

import functools

import tensorflow as tf


class Packed:
    """The runs of rows [batch, length] with at most `count` segments in a row.

    Tensors are int64, because TensorFlow keeps int32 arguments of functions on the host.

    Attributes:
      lengths: [batch, count], the number of tokens of each run of the batch, then zeros.
      offsets: [batch, count + 1], the first token of each run, then the number of all tokens.
      fits: whether there are no more runs, and each number of a row is in one run; a boolean.
    """

    def __init__(self, segments: tf.Tensor, count: int) -> None:
        rows, self._length = segments.shape
        begins = tf.not_equal(segments[:, 1:], segments[:, :-1])
        begins = tf.reshape(tf.pad(begins, [[0, 0], [1, 0]], constant_values=True), [-1])
        self._run = tf.cumsum(tf.cast(begins, tf.int64)) - 1  # Of each token.
        total = rows * count
        each = tf.range(rows * (count + 1), dtype=tf.int64)
        offsets = _count(self._run[None] < each[:, None])
        self._begins = offsets[:total]
        lengths = offsets[1 : total + 1] - self._begins
        self.offsets = tf.reshape(offsets, [rows, count + 1])
        self.lengths = tf.reshape(lengths, [rows, count])
        # Numbers that tokens of a row have in common with its runs.
        numbers, first = tf.reshape(segments, [-1]), tf.minimum(self._begins, begins.shape[0] - 1)
        row = tf.range(begins.shape[0], dtype=tf.int64) // self._length
        is_same = tf.equal(numbers[None], tf.gather(numbers, first)[:, None])
        is_same &= tf.equal(row[None], self._begins[:, None] // self._length)
        is_one_run = tf.reduce_all(tf.equal(_count(is_same), lengths))
        self.fits = tf.logical_and(is_one_run, self._run[-1] < total)

    def by_token(self, x: tf.Tensor) -> tf.Tensor:
        """Reorders [runs, heads, length], by position in the run -> [batch, heads, length]."""
        place = tf.range(self._run.shape[0], dtype=tf.int64) - tf.gather(self._begins, self._run)
        run, place = (tf.reshape(t, [-1, 1, self._length]) for t in (self._run, place))
        return self._gathered(x, run, place)

    def by_run(self, x: tf.Tensor) -> tf.Tensor:
        """Reverses `by_token`; what is after the end of a run has any value."""
        row, begin = self._begins // self._length, self._begins % self._length
        row = tf.minimum(row, x.shape[0] - 1)  # Runs without tokens begin after the last row.
        place = begin[:, None] + tf.range(self._length, dtype=tf.int64)
        place = tf.minimum(place, self._length - 1)
        return self._gathered(x, row[:, None, None], place[:, None])

    def _gathered(self, x: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
        """Returns `x[first, head, last]` for each head, by one index: nothing is transposed."""
        head = tf.range(x.shape[1], dtype=tf.int64)[:, None]
        return tf.gather(tf.reshape(x, [-1]), (first * x.shape[1] + head) * x.shape[2] + last)


_count = functools.partial(tf.math.count_nonzero, axis=1)
