"""Batches of examples of similar length, so that short examples are not padded to long ones.

There are buckets of lengths L, L/2, L/4, ...; an example is in the shortest bucket that holds it.
All examples of a batch are from one bucket. A batch of half the length has twice the rows, so every
batch has the same number of tokens, padding included. A mesh that divides the batch size also
divides the number of rows of every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t2tp.problems.data.batch_sizes import BatchSizes
from t2tp.problems.data.batch_stream import EMPTY, Batch, ExampleSource, batch_shapes, checked_step
from t2tp.problems.data.permutation import permute

# Min length of a bucket: shorter buckets would save little, and each bucket needs a program.
_SHORTEST = 16


def bucket_lengths(length: int) -> list[int]:
    """Returns the lengths of the buckets, the longest first."""
    lengths = [length]
    while lengths[-1] % 2 == 0 and lengths[-1] // 2 >= _SHORTEST:
        lengths.append(lengths[-1] // 2)
    return lengths


class _Epoch(NamedTuple):
    """An epoch, or its remaining part after a change of the batch size.

    Attributes:
      number: the epoch, counted from 0.
      step: the step of its first batch.
      read: int64 [buckets], rows that were read before `step`, in batches of other sizes.
      rows: int64 [buckets], rows of a batch.
      batches: int64 [buckets], number of batches.
    """

    number: int
    step: int
    read: np.ndarray
    rows: np.ndarray
    batches: np.ndarray


class BucketedStream:
    """An endless stream, reshuffled every epoch. All rows of a batch are from one bucket.

    An epoch has every example once, even if the batch size changes within the epoch. The last batch
    of a bucket is padded with empty rows.

    Attributes:
      batch_sizes: rows of a batch of the longest bucket, at each step.
      batches_per_epoch: number of batches of all buckets together.
    """

    def __init__(
        self, buckets: Sequence[tuple[ExampleSource, int]], batch_size: int | BatchSizes, seed: int
    ):
        """Sets the buckets and the order.

        `buckets` has (examples, multiple) for each bucket that is not empty. A batch of the bucket
        has `multiple` times the rows of a batch of the longest bucket, for example twice the
        rows at half the length. `batch_size` is the number of rows of the longest bucket's batches.
        """
        self._buckets = buckets
        self._seed = seed
        self._sizes = np.array([len(source) for source, _ in buckets])
        self._multiples = np.array([multiple for _, multiple in buckets])
        self._order: tuple[tuple, np.ndarray] = ((), np.empty(0, np.int8))
        self.batch_sizes = BatchSizes.of(batch_size)
        # The remaining part of the epoch at each change of the batch size.
        self._changes: list[_Epoch] = []
        number, read = 0, np.zeros_like(self._sizes)
        for step, size in self.batch_sizes.changes:
            if self._changes:
                epoch = self._epoch(step)
                taken = self._bucket_order(epoch)[: step - epoch.step]
                counts = np.bincount(taken, minlength=len(buckets))
                number = epoch.number
                read = np.minimum(epoch.read + counts * epoch.rows, self._sizes)
            self._changes.append(self._begin(number, step, read, size * self._multiples))
        self.batches_per_epoch = int(self._batches(0, self._changes[-1].rows).sum())

    def with_batch_sizes(self, batch_sizes: BatchSizes) -> BucketedStream:
        """Returns a stream of the same buckets with other batch sizes."""
        return BucketedStream(self._buckets, batch_sizes, self._seed)

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of this step, counted from 0."""
        epoch = self._epoch(checked_step(step))
        order, offset = self._bucket_order(epoch), step - epoch.step
        bucket = int(order[offset])
        source, rows = self._buckets[bucket][0], int(epoch.rows[bucket])
        # A bucket's batches read its examples in the shuffled order of the epoch. So when the batch
        # size changes, one position per bucket determines the remaining examples.
        before = int(epoch.read[bucket]) + rows * np.count_nonzero(order[:offset] == bucket)
        positions = before + np.arange(rows)
        examples = np.full(rows, EMPTY, np.int64)
        real = positions < len(source)
        key = ("bucket", self._seed, epoch.number, bucket)
        examples[real] = permute(positions[real], len(source), *key)
        return Batch(source, examples)

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes of a batch of each bucket, the longest bucket first."""
        size = self.batch_sizes.last
        return [batch_shapes(source, size * multiple) for source, multiple in self._buckets]

    def _batches(self, read: np.ndarray | int, rows: np.ndarray) -> np.ndarray:
        """Returns the number of remaining batches of each bucket after `read` rows."""
        return -(-(self._sizes - read) // rows)

    def _begin(self, number: int, step: int, read: np.ndarray, rows: np.ndarray) -> _Epoch:
        return _Epoch(number, step, read, rows, self._batches(read, rows))

    def _epoch(self, step: int) -> _Epoch:
        """Returns the epoch that contains a step."""
        first = next(each for each in reversed(self._changes) if each.step <= step)
        after = step - first.step - int(first.batches.sum())
        if after < 0:
            return first
        whole = self._begin(first.number + 1, 0, np.zeros_like(self._sizes), first.rows)
        epochs, offset = divmod(after, int(whole.batches.sum()))
        return whole._replace(number=whole.number + epochs, step=step - offset)

    def _bucket_order(self, epoch: _Epoch) -> np.ndarray:
        """Returns the bucket of each batch of an epoch; caches the last result."""
        key = (epoch.number, *epoch.batches.tolist())
        if self._order[0] != key:
            edges = np.cumsum(epoch.batches)
            count = int(edges[-1])
            rank = permute(np.arange(count), count, "batches", self._seed, epoch.number)
            self._order = key, np.searchsorted(edges, rank, side="right").astype(np.int8)
        return self._order[1]
