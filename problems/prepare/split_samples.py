"""Reads the samples of a split in a fixed shuffled order, and skips bad samples."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from t2tp.problems.data.permutation import permute
from t2tp.problems.data.sample import (
    NOT_THE_SAMPLES_FAULT,
    BadSampleError,
    Sample,
    Samples,
    SkippedSampleError,
)

_T = TypeVar("_T")

# Number of indices of the shuffled order to compute at a time.
_POSITIONS_AT_ONCE = 1 << 16


class BadSamples:
    """Counts bad samples, and raises an error when there are too many."""

    def __init__(self, problem: str, limit: int, count: Callable[[], int] | None = None):
        """Sets the problem's name and the max number of samples to skip.

        `count` counts one bad sample, and returns the number so far in all processes.
        """
        self.problem = problem
        self.limit = limit
        self._count = count or (lambda: len(self._known))
        self._known: set[tuple[str, int]] = set()

    def add(self, split: str, number: int, error: Exception, sample: Any = None) -> BadSampleError:
        """Counts a bad sample, unless it has been counted before; returns an error about it.

        `number` is the sample's index in the problem's own, unshuffled order.

        Raises:
          BadSampleError: there are more bad samples than the limit.
        """
        message = str(error)
        if not isinstance(error, BadSampleError):
            message = f"{self.problem}, {split}, sample {number}: {_reason(error, sample)}"
        if (split, number) in self._known:
            return BadSampleError(message)
        self._known.add((split, number))
        if (count := self._count()) > self.limit:
            if self.limit:
                message = (
                    f"{count} samples are bad, and at most {self.limit} may be; the last: {message}"
                )
            raise BadSampleError(message) from error
        return BadSampleError(message)


def _reason(error: Exception, sample: Any) -> str:
    """Returns the reason why a sample is bad, as a phrase."""
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(sample, Mapping) and missing is not None and missing not in sample:
        return f"it has no {missing!r}, only {', '.join(map(repr, sample)) or 'nothing'}"
    if isinstance(error, ValueError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"


class ShuffledSamples:
    """The samples of a split, in a fixed order."""

    def __init__(self, samples: Samples, split: str = "", bad: BadSamples | None = None):
        """Sets the samples.

        `split` is the split's name, for errors. Without `bad`, the first bad sample is an error.
        """
        self._samples = samples
        self._split = split
        self._bad = bad or BadSamples("samples", 0)

    def __len__(self) -> int:
        return len(self._samples)

    def part(self, begin: int, end: int) -> Iterator[tuple[int, Callable[[], Sample]]]:
        """Yields (index, function that reads the sample) at positions `begin` to before `end`."""
        for low in range(begin, end, _POSITIONS_AT_ONCE):
            positions = np.arange(low, min(low + _POSITIONS_AT_ONCE, end))
            for number in permute(positions, len(self), "documents").tolist():
                yield number, partial(self._samples.__getitem__, number)

    def outcomes(
        self, use: Callable[[Sample], _T], begin: int, end: int
    ) -> Iterator[_T | SkippedSampleError | BadSampleError]:
        """Yields the result of `use` for each sample at positions `begin` to before `end`.

        For a sample that is skipped or bad, yields the error instead.

        Raises:
          BadSampleError: too many samples are bad.
        """
        for number, read in self.part(begin, end):
            sample = None
            outcome: _T | SkippedSampleError | BadSampleError
            try:
                sample = read()
                outcome = use(sample)
            except SkippedSampleError as skipped:
                outcome = skipped
            except NOT_THE_SAMPLES_FAULT:
                raise
            except Exception as error:  # a user's problem raises any type
                outcome = self._bad.add(self._split, number, error, sample)
            yield outcome

    def each(self, use: Callable[[Sample], _T]) -> Iterator[_T]:
        """Yields the result of `use` for each sample that is not skipped or bad.

        Raises:
          BadSampleError: too many samples are bad.
        """
        for outcome in self.outcomes(use, 0, len(self)):
            if not isinstance(outcome, SkippedSampleError | BadSampleError):
                yield outcome

    def __iter__(self) -> Iterator[Sample]:
        """Yields the samples that are not skipped or bad."""
        return self.each(lambda sample: sample)
