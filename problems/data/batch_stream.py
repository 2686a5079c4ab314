"""The batch of step k: a pure function of the data, the seed, k and the batch sizes up to k.

A stream is indexed by the step and has no state, so resuming at step 1,000,000 costs the same as at
step 10. Neither the mesh nor the number of processes changes the data. A change of the batch size
neither repeats nor skips a row; see `batch_sizes.py`.

    stream[k]                          # the batch of step k; nothing is read yet
    stream[k]["targets"][2:4, 0:128]   # reads only rows 2 and 3

`ShuffledStream` is endless and shuffles each epoch separately. `OnePassStream` has each example
once, in the order of the files, and pads its last batch with empty rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2tp.problems.data.batch_sizes import BatchSizes
from t2tp.problems.data.permutation import permute

# A batch may have empty rows. Their example index is `EMPTY`, and all their features are 0.
EMPTY = -1
# Positions that are shuffled together: a few positions take as long as a thousand.
_BLOCK = 1024


class FeatureSpec(NamedTuple):
    """The dimensions ("batch" first) and dtype of a batch's feature."""

    dimensions: tuple[str, ...]
    dtype: np.dtype


# The spec of the feature that contains each row's example index.
INDEX_SPEC = FeatureSpec(("batch",), np.dtype(np.int64))


class ExampleSource(Protocol):
    """Examples with random access, from which a stream reads."""

    @property
    def features(self) -> Mapping[str, FeatureSpec]:
        """The features by name."""

    def __len__(self) -> int:
        """Returns the number of examples."""

    def shape(self, feature: str) -> tuple[int, ...]:
        """Returns the sizes of the feature's dimensions without "batch"."""

    def read(self, feature: str, examples: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads a feature of examples as an array [rows, *parts].

        Args:
          feature: name of the feature.
          examples: int64 [rows], indices of examples; `EMPTY` gives a row of zeros.
          parts: a slice for each dimension except "batch".
        """


class Stream(Protocol):
    """Batches by step. Finite streams have a length."""

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of this step, counted from 0; nothing is read yet."""

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes of the features. Each dictionary is for one length of sequences.

        If the batch size changes during the training, the shapes have the last batch size.
        """


class BatchFeature:
    """A feature of a batch; only the slices that are accessed are read.

    Attributes:
      shape: sizes of all dimensions, the global batch first.
    """

    def __init__(self, source: ExampleSource, name: str, examples: np.ndarray):
        self._source = source
        self._name = name
        self._examples = examples
        self.shape = (len(examples), *source.shape(name))
        self.dtype = source.features[name].dtype

    def __getitem__(self, index: slice | tuple[slice, ...]) -> np.ndarray:
        """Reads a part: a Python slice for each dimension; trailing slices may be omitted."""
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) > len(self.shape) or not all(isinstance(part, slice) for part in parts):
            raise TypeError(
                f"feature {self._name!r} of shape {self.shape} needs at most "
                f"{len(self.shape)} slices, such as feature[0:2, 0:64], not {index!r}"
            )
        rows, *rest = parts + (slice(None),) * (len(self.shape) - len(parts))
        return self._source.read(self._name, self._examples[rows], tuple(rest))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


class Batch(Mapping[str, BatchFeature | np.ndarray]):
    """The examples of one step, read on access: features by name.

    Attributes:
      examples: int64 [batch], indices in the source; `EMPTY` for an empty row.
    """

    def __init__(self, source: ExampleSource, examples: np.ndarray, index_name: str = ""):
        """Sets the examples, whose indices are also a feature if `index_name` is not empty."""
        self.source = source
        self.examples = examples
        self._index_name = index_name

    def __getitem__(self, name: str) -> BatchFeature | np.ndarray:
        if name and name == self._index_name:
            return self.examples
        if name not in self.source.features:
            raise KeyError(f"no feature {name!r}: the features are {', '.join(self)}")
        return BatchFeature(self.source, name, self.examples)

    def __iter__(self) -> Iterator[str]:
        yield from self.source.features
        if self._index_name:
            yield self._index_name

    def __len__(self) -> int:
        return len(self.source.features) + bool(self._index_name)


def batch_shapes(source: ExampleSource, batch_size: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the features of a batch."""
    return {name: (batch_size, *source.shape(name)) for name in source.features}


def shuffled(positions: np.ndarray, size: int, *key: int | str) -> np.ndarray:
    """Returns the example at each position of an endless shuffle.

    Args:
      positions: int64 of any shape, positions from the beginning of the first epoch.
      size: number of examples; each epoch has every example once, in a different order.
      *key: identifies the shuffle.
    """
    examples = np.empty(np.shape(positions), np.int64)
    epochs, positions = np.divmod(positions, size)
    blocks_of_epoch = -(-size // _BLOCK)
    blocks = epochs * blocks_of_epoch + positions // _BLOCK
    for block in np.unique(blocks).tolist():
        in_block = blocks == block
        epoch, block = divmod(block, blocks_of_epoch)
        shuffled_block = _shuffled_block(block, size, *key, epoch)
        examples[in_block] = shuffled_block[positions[in_block] - block * _BLOCK]
    return examples


@functools.lru_cache(64)
def _shuffled_block(block: int, size: int, *key: int | str) -> np.ndarray:
    """Returns the examples at the positions of a block of an epoch: int64 [<= _BLOCK]."""
    first = block * _BLOCK
    return permute(np.arange(first, min(first + _BLOCK, size)), size, *key)


class ShuffledStream:
    """An endless stream, reshuffled every epoch; a batch may span two epochs."""

    def __init__(self, source: ExampleSource, batch_size: int | BatchSizes, seed: int):
        self._source = source
        self._seed = operator.index(seed)
        self.batch_sizes = BatchSizes.of(batch_size)
        self.examples_per_epoch = len(source)

    def with_batch_sizes(self, batch_sizes: BatchSizes) -> ShuffledStream:
        """Returns the same rows in batches of these sizes."""
        return ShuffledStream(self._source, batch_sizes, self._seed)

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of this step, counted from 0."""
        sizes = self.batch_sizes
        positions = sizes.rows_before(checked_step(step)) + np.arange(sizes.at(step))
        examples = shuffled(positions, self.examples_per_epoch, "epoch", self._seed)
        return Batch(self._source, examples)

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes with the last batch size."""
        return [batch_shapes(self._source, self.batch_sizes.last)]


class OnePassStream:
    """A stream that has each example once, in order. Empty rows pad its last batch."""

    def __init__(self, source: ExampleSource, batch_size: int, index_name: str = ""):
        """Sets the examples and the batch size; `index_name` as for `Batch`."""
        self._source = source
        self._batch_size = batch_size
        self._index_name = index_name
        self.examples_per_epoch = len(source)

    def __len__(self) -> int:
        return -(-self.examples_per_epoch // self._batch_size)

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of this step, counted from 0."""
        if checked_step(step) >= len(self):
            raise IndexError(f"there is no batch {step}: one pass has {len(self)} batches, from 0")
        examples = step * self._batch_size + np.arange(self._batch_size)
        examples = np.where(examples < self.examples_per_epoch, examples, EMPTY)
        return Batch(self._source, examples, self._index_name)

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes of a batch."""
        sizes = batch_shapes(self._source, self._batch_size)
        return [{**sizes, self._index_name: (self._batch_size,)} if self._index_name else sizes]


def checked_step(step: int) -> int:
    """Returns the step as an int; raises IndexError if it is negative."""
    step = operator.index(step)
    if step < 0:
        raise IndexError(f"there is no batch {step}: batches are counted from 0")
    return step
