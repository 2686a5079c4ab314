"""Memory-mapped columns of a split, with random access to examples in O(1).

The shards of a split (`shards.py`) appear as one array: example indices and value positions count
through all shards. Blocks are verified when they are read; see `checked_file.py`.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from t2tp.problems.data.checked_file import CheckedFile
from t2tp.problems.data.manifest import CHECKS_END, DamagedDataError
from t2tp.problems.data.row_plan import ranges
from t2tp.problems.data.shards import OFFSET, Checks, read_checks


class Column:
    """One column of a split.

    `size` is the number of values of all examples.
    """

    def __init__(self, files: Sequence[Path], dtype: np.dtype, below: int | None = None):
        """Maps the files of the values, one per shard, and the ".begins" files next to them.

        Values must be `below` the number of ids, if given; see `CheckedFile`.
        """
        self.dtype = np.dtype(dtype)
        self._none = np.empty(0, self.dtype)
        checks = [read_checks(path.parent, path.stem) for path in files]
        self._values = [
            _open(path, self.dtype, each, below) for path, each in zip(files, checks, strict=True)
        ]
        self._begins = [
            _open(path.with_name(f"{path.name}.begins"), OFFSET, each, len(values) + 1, True)
            for path, each, values in zip(files, checks, self._values, strict=True)
        ]
        # [shards + 1]: index of each shard's first example, and position of its first value.
        self._first_example = _running([len(begins) - 1 for begins in self._begins])
        self._first_value = _running([len(values) for values in self._values])
        self._first_values = self._first_value.tolist()
        self.size = self._first_values[-1]

    def __len__(self) -> int:
        """Returns the number of examples."""
        return int(self._first_example[-1])

    def values(self, positions: np.ndarray) -> np.ndarray:
        """Returns the values at positions, integers in range(size), of any shape."""
        return self._over_shards(
            positions,
            self._first_value,
            self.dtype,
            lambda shard, inside: self._values[shard][inside],
        )

    def offsets(self, examples: np.ndarray) -> np.ndarray:
        """Returns the positions where examples begin; `size` for the index `len(self)`."""

        def begin(shard: int, inside: np.ndarray) -> np.ndarray:
            return self._begins[shard][inside] + self._first_value[shard]

        # `len(self)` belongs to no shard; 0 is looked up instead.
        is_end = examples == len(self)
        if not len(self):
            return np.zeros(np.shape(examples), np.int64)
        begins = self._over_shards(
            np.where(is_end, 0, examples), self._first_example, np.dtype(np.int64), begin
        )
        return np.where(is_end, self.size, begins)

    def span(self, begin: int, end: int) -> np.ndarray:
        """Returns the values at positions `begin` (included) to `end` (excluded)."""
        return np.concatenate([self._none, *self._slices(begin, end)])

    def spans(self, begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns the values of spans, concatenated.

        Args:
          begins: int64 [spans], first position of each span.
          sizes: int64 [spans], number of values of each span.
        """
        if len(self._values) == 1:
            return self._values[0][ranges(begins, sizes)]
        # A lookup of each value's shard would take longer.
        slices = map(self._slices, begins.tolist(), (begins + sizes).tolist())
        return np.concatenate([self._none, *itertools.chain.from_iterable(slices)])

    def parts(
        self, begins: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Divides spans where examples begin.

        Args:
          begins: int64 [spans], first position of each span.
          ends: int64 [spans], position after each span, which is not empty.

        Returns:
          The number of parts of each span, int64 [spans]; and the first position and the size of
          each part, concatenated, int64 [parts].
        """
        first, last = self._examples_at(np.stack([begins, ends - 1]))
        counts = last - first + 1
        begins_at = counts.cumsum() - counts
        part_begins = self.offsets(ranges(first, counts))
        part_begins[begins_at] = begins
        part_ends = np.empty_like(part_begins)
        part_ends[:-1] = part_begins[1:]
        part_ends[begins_at + counts - 1] = ends
        return counts, part_begins, part_ends - part_begins

    def _examples_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns the index of the example that has the value at each position."""

        def example(shard: int, inside: np.ndarray) -> np.ndarray:
            return self._begins[shard].searchsorted(inside) - 1 + self._first_example[shard]

        return self._over_shards(positions, self._first_value, np.dtype(np.int64), example)

    def _slices(self, begin: int, end: int) -> Iterator[np.ndarray]:
        """Yields the values of a span from each of its shards."""
        shard = bisect.bisect_right(self._first_values, begin) - 1
        while begin < end:
            first, next_first = self._first_values[shard : shard + 2]
            stop = min(end, next_first)
            if begin < stop:
                yield self._values[shard][begin - first : stop - first]
            begin, shard = stop, shard + 1

    def example(self, number: int) -> np.ndarray:
        """Returns all values of an example."""
        return self.span(*self.offsets(np.array([number, number + 1])).tolist())

    def read_lengths(self, begin: int, end: int) -> np.ndarray:
        """Reads the lengths of examples `begin` (included) to `end` (excluded): int64 [examples].

        Does not map the files, because mapped pages would count as memory of the process.
        """
        lengths = [np.empty(0, np.int64)]
        firsts = self._first_example.tolist()
        for begins, first, last in zip(self._begins, firsts[:-1], firsts[1:], strict=True):
            low, high = max(begin, first), min(end, last)
            if low < high:
                lengths.append(np.diff(begins.read(low - first, high - first + 1)))
        return np.concatenate(lengths)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of each example: int64 [examples]."""
        return np.concatenate([np.diff(begins[:]) for begins in self._begins])

    def counts(self, size: int, at_once: int = 1 << 22) -> np.ndarray:
        """Returns the frequency of each number below `size` among the values: int64 [size].

        All values must be below `size`. `at_once` is the number of values to count at a time.
        """
        counts = np.zeros(size, np.int64)
        for values in self._values:
            for begin in range(0, len(values), at_once):
                counts += np.bincount(values[begin : begin + at_once], minlength=size)
        return counts

    def check(self, at_once: int = 1 << 22) -> None:
        """Reads all values and offsets; raises DamagedDataError if they are damaged.

        `at_once` is the number of values to read at a time.
        """
        for begins, values in zip(self._begins, self._values, strict=True):
            for begin in range(0, len(values), at_once):
                values[begin : begin + at_once]
            for begin in range(0, len(begins), at_once):
                begins[begin : begin + at_once]
            if not len(begins) or begins[-1:] != len(values):
                raise DamagedDataError(f"{begins} does not end at {len(values)}")

    def _over_shards(
        self,
        numbers: np.ndarray,
        first: np.ndarray,
        dtype: np.dtype,
        take: Callable[[int, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Looks up indices shard by shard with `take(shard, indices within it)`."""
        if len(self._values) == 1:
            return take(0, numbers)
        # Sorted indices of a shard are neighbors, which is faster than a mask for each shard.
        order = numbers.argsort(axis=None)
        ordered = numbers.ravel()[order]
        cuts = ordered.searchsorted(first)
        result = np.empty(len(order), dtype)
        for shard in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
            inside = slice(cuts[shard], cuts[shard + 1])
            result[order[inside]] = take(shard, ordered[inside] - first[shard])
        return result.reshape(numbers.shape)


def _open(
    path: Path, dtype: np.dtype, checks: Checks, below: int | None = None, ascending: bool = False
) -> CheckedFile:
    if path.name not in checks.crc32:
        raise DamagedDataError(f"{path} has no checksums in {path.stem}{CHECKS_END}")
    return CheckedFile(path, dtype, checks.sums(path.name), checks.block_bytes, below, ascending)


def _running(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
