"""The samples of a split as they are read: in a fixed shuffled order, the bad ones left out."""

from __future__ import annotations

import os
import pickle
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from t2tp.problems.permutation import permute

if TYPE_CHECKING:
    from t2tp.problems.problem import Problem

Sample = Mapping[str, Any]
_T = TypeVar("_T")

# These say nothing about a sample: a full disk, too little memory, a package that is missing.
NOT_THE_SAMPLES_FAULT = (OSError, MemoryError, ImportError)

# Places of the shuffled order that are computed at once.
_PLACES_AT_ONCE = 1 << 16

# In the folder that is being made: samples that can be gone through only once.
_SPOOLED = ".samples"

# Characters of a wrong value that an error shows.
_SHOWN = 60


@runtime_checkable
class Samples(Protocol):
    """The samples of a split, any of them by its number: a list will do."""

    def __len__(self) -> int:
        """Returns how many there are."""

    def __getitem__(self, number: int, /) -> Sample:
        """Returns a sample; raises `SkippedSampleError` to leave it out."""


class SkippedSampleError(Exception):
    """A sample is left out, and counted; the message is the reason, the same for all alike."""


class BadSampleError(ValueError):
    """A sample cannot be used; the message says which and why, as in "FILE, line 12: no tab"."""


class BadSamples:
    """Counts the samples that cannot be used, and ends the work when there are too many.

    Attributes:
        problem: its name.
        limit: how many may be left out.
    """

    def __init__(self, problem: str, limit: int, count: Callable[[], int] | None = None):
        """Takes the limit.

        Args:
            problem: its name.
            limit: how many may be left out.
            count: counts one, and returns how many there have been in all processes.
        """
        self.problem = problem
        self.limit = limit
        self._count = count or self._count_here
        self._known: set[tuple[str, int]] = set()

    def _count_here(self) -> int:
        return len(self._known)

    def add(self, split: str, number: int, error: Exception, sample: Any = None) -> str:
        """Counts a sample, once.

        Args:
            split: where it is.
            number: of the sample, as the problem has them.
            error: what was raised.
            sample: what was read, if it could be.

        Returns:
            Which sample it is, and what is wrong with it.

        Raises:
            BadSampleError: there are more than the limit.
        """
        said = str(error)
        if not isinstance(error, BadSampleError):
            said = f"{self.problem}, {split}, sample {number}: {_reason(error, sample)}"
        if (split, number) in self._known:
            return said
        self._known.add((split, number))
        if (count := self._count()) > self.limit:
            if self.limit:
                said = f"{count} samples are bad, and at most {self.limit} may be; the last: {said}"
            raise BadSampleError(said) from error
        return said


def _reason(error: Exception, sample: Any) -> str:
    """Says in half a sentence what is wrong with a sample."""
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(sample, Mapping) and missing is not None and missing not in sample:
        return f"it has no {missing!r}, only {', '.join(map(repr, sample)) or 'nothing'}"
    if isinstance(error, ValueError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"


def text_of(sample: Sample, name: str) -> str:
    """Returns a text of a sample.

    Raises:
        KeyError: the sample does not have it.
        ValueError: it is something else.
    """
    text = sample[name]
    if not isinstance(text, str):
        shown = repr(text)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        raise ValueError(f"{name!r} is {shown} ({type(text).__name__}), and must be a text (str)")
    return text


class ShuffledSamples:
    """The samples of a split, in an order that is always the same."""

    def __init__(self, samples: Samples, split: str = "", bad: BadSamples | None = None):
        """Takes the samples.

        Args:
            samples: by their numbers.
            split: what they are, for errors.
            bad: counts those that cannot be used. Without it the first ends the work.
        """
        self._samples = samples
        self._split = split
        self._bad = bad or BadSamples("samples", 0)

    def __len__(self) -> int:
        return len(self._samples)

    def part(self, begin: int, end: int) -> Iterator[tuple[int, Callable[[], Sample]]]:
        """Gives the number of each sample, and what reads it, from `begin` to before `end`."""
        for low in range(begin, end, _PLACES_AT_ONCE):
            places = np.arange(low, min(low + _PLACES_AT_ONCE, end))
            for number in permute(places, len(self), "documents").tolist():
                yield number, partial(self._samples.__getitem__, number)

    def each(self, use: Callable[[Sample], _T]) -> Iterator[_T]:
        """Gives what `use` makes of each sample, but for those that are left out or bad.

        Raises:
            BadSampleError: too many are bad.
        """
        for number, read in self.part(0, len(self)):
            sample = None
            try:
                sample = read()
                found = use(sample)
            except SkippedSampleError:
                continue
            except NOT_THE_SAMPLES_FAULT:
                raise
            except Exception as error:  # whatever a user's problem raises
                self._bad.add(self._split, number, error, sample)
                continue
            yield found

    def __iter__(self) -> Iterator[Sample]:
        """Gives the samples, but for those that are left out or bad."""
        return self.each(lambda sample: sample)


def open_samples(problem: Problem, split: str, folder: Path, tmp_dir: Path) -> Samples:
    """Opens the samples of a split; what can be gone through only once is put on the disk first.

    Args:
        problem: whose samples.
        split: one of its splits.
        folder: where its data are being made.
        tmp_dir: where its downloads are.

    Raises:
        ValueError: they are nothing that can be gone through.
    """
    spooled = folder / _SPOOLED / split
    if spooled.exists():
        return _Spooled(spooled)
    samples = problem.samples(split, folder, tmp_dir)
    if isinstance(samples, Samples):
        return samples
    if not isinstance(samples, Iterable):
        raise ValueError(
            f"{problem.name}: samples({split!r}) returned {samples!r}; give a list, or what has "
            "a length and any sample by its number, or a generator"
        )
    _spool(samples, spooled)
    return _Spooled(spooled)


def remove_spooled(folder: Path) -> None:
    """Removes what `open_samples` has put on the disk, of all problems in a folder."""
    for spooled in [*folder.rglob(_SPOOLED)]:
        shutil.rmtree(spooled)


def _spool(samples: Iterable[Sample], folder: Path) -> None:
    """Writes samples one after the other; the folder appears when all are there."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with (unfinished / "samples").open("wb") as file, (unfinished / "begins").open("wb") as begins:
        for sample in samples:
            begins.write(np.int64(file.tell()).tobytes())
            pickle.dump(sample, file, protocol=pickle.HIGHEST_PROTOCOL)
    unfinished.rename(folder)


class _Spooled:
    """Samples that `_spool` wrote, any of them by its number."""

    def __init__(self, folder: Path):
        self._file = (folder / "samples").open("rb")
        self._begins = np.fromfile(folder / "begins", np.int64)

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, number: int) -> Sample:
        self._file.seek(self._begins[number], os.SEEK_SET)
        return pickle.load(self._file)
