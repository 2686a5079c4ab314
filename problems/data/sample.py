"""Samples: the raw records that a problem encodes as examples."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

Sample = Mapping[str, Any]

# Errors whose cause is not the sample: a full disk, too little memory, a missing package.
NOT_THE_SAMPLES_FAULT = (OSError, MemoryError, ImportError)

# Max length of a wrong value in an error.
_SHOWN = 60


@runtime_checkable
class Samples(Protocol):
    """The samples of a split with random access, such as a list."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def __getitem__(self, index: int, /) -> Sample:
        """Returns a sample; raises `SkippedSampleError` to skip it."""


class GeneratedSamples:
    """A sample for each index, computed on access."""

    def __init__(self, count: int, sample: Callable[[int], Sample]):
        self._count = count
        self._sample = sample

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        return self._sample(int(number))


class StoredExample(NamedTuple):
    """An encoded example: integers for each column, and the UTF-8 length of its text, or 0."""

    columns: dict[str, np.ndarray]
    text_bytes: int = 0


class SkippedSampleError(Exception):
    """Raised to skip a sample; the message is the reason. Skipped samples are counted by reason."""


class BadSampleError(ValueError):
    """Raised for a bad sample; the message has location and reason: "FILE, line 12: no tab"."""


def text_of(sample: Sample, name: str) -> str:
    """Returns a text of a sample.

    Raises:
      KeyError, ValueError: the sample has no value of this name, or the value is not a str.
    """
    text = sample[name]
    if not isinstance(text, str):
        quoted = repr(text)
        quoted = quoted if len(quoted) <= _SHOWN else f"{quoted[:_SHOWN]}..."
        raise ValueError(f"{name!r} is {quoted} ({type(text).__name__}), and must be a text (str)")
    return text
