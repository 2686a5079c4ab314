"""Batches of examples of similar length, so that short ones are not padded to the longest.

There are buckets of lengths L, L/2, L/4, ...; an example is in the shortest that holds it. A batch
is from one bucket, and has twice the rows where the length is half: every batch has the same number
of tokens, and a mesh that divides the batch size divides the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from t2tp.problems.data.permutation import permute
from t2tp.problems.data.stream import EMPTY, Batch, ExampleSource, batch_shapes, checked_step

# Shorter buckets save little and need a program each.
_SHORTEST = 16


def bucket_lengths(length: int) -> list[int]:
    """Returns the lengths of the buckets, the longest first."""
    lengths = [length]
    while lengths[-1] % 2 == 0 and lengths[-1] // 2 >= _SHORTEST:
        lengths.append(lengths[-1] // 2)
    return lengths


class BucketedStream:
    """An endless stream of batches from one bucket each, reshuffled every epoch.

    An epoch has every example once. The last batch of a bucket is padded with empty rows.

    Attributes:
      batches_per_epoch: of all buckets.
    """

    def __init__(self, buckets: Sequence[tuple[ExampleSource, int]], seed: int):
        """Takes the non-empty sources of the buckets, each with the number of rows of a batch."""
        self._buckets = buckets
        self._seed = seed
        batches = [-(-len(source) // rows) for source, rows in buckets]
        self._first = np.concatenate([[0], np.cumsum(batches)])  # [buckets + 1]
        self.batches_per_epoch = int(self._first[-1])

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of this step, counted from 0."""
        epoch, offset = divmod(checked_step(step), self.batches_per_epoch)
        count = self.batches_per_epoch
        batch = int(permute(np.array([offset]), count, "batches", self._seed, epoch)[0])
        bucket = int(np.searchsorted(self._first, batch, side="right")) - 1
        source, rows = self._buckets[bucket]
        positions = (batch - self._first[bucket]) * rows + np.arange(rows)
        examples = np.full(rows, EMPTY, np.int64)
        real = positions < len(source)
        examples[real] = permute(positions[real], len(source), "bucket", self._seed, epoch, bucket)
        return Batch(source, examples)

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes of each bucket's batches, the longest first."""
        return [batch_shapes(source, rows) for source, rows in self._buckets]
