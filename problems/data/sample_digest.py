"""A digest of samples as they are read, to detect sources that change between two attempts."""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from t2tp.problems.data.sample import NOT_THE_SAMPLES_FAULT, Sample, SkippedSampleError

_DIGEST_BYTES = 16

# File with the digest of the texts that the vocabulary was trained on.
TEXTS_NOTE = ".vocabulary_texts"


class ChangedSourcesError(Exception):
    """Raised if an interrupted attempt had other samples."""


class SampleDigest:
    """The digest of a sequence of samples."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)

    def read(self, read: Callable[[], Sample]) -> Sample:
        """Reads a sample and adds it, or its error, to the digest."""
        try:
            sample = read()
        except NOT_THE_SAMPLES_FAULT:
            raise
        except Exception as error:
            self.add(f"{type(error).__name__}: {error}")
            raise
        self.add(sample)
        return sample

    def add(self, value: Any) -> None:
        """Adds any value that a sample may have."""
        add = self._digest.update
        if isinstance(value, str | bytes):
            contents = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            add(b"%c%d:" % (type(value).__name__[0].encode(), len(contents)))
            add(contents)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            add(f"a{value.dtype.str}{value.shape}:".encode())
            add(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            add(b"m%d:" % len(value))
            for name in value:
                self.add(name)
                self._add_item(value, name)
        elif isinstance(value, list | tuple):
            add(b"l%d:" % len(value))
            for each in value:
                self.add(each)
        elif value is None or isinstance(value, int | float | complex):
            add(repr(value).encode())
        else:
            self.add(pickle.dumps(value, protocol=4))

    def _add_item(self, value: Mapping[Any, Any], name: Any) -> None:
        try:
            self.add(value[name])
        except SkippedSampleError as reason:  # for instance a text of TFDS that is not UTF-8
            self.add(str(reason))

    def hexdigest(self) -> str:
        """Returns the digest of everything added."""
        return self._digest.hexdigest()


class DigestedTexts:
    """Texts, with the number and a digest of the texts that were iterated so far."""

    def __init__(self, texts: Iterable[str]):
        self._texts = texts
        self._digest = SampleDigest()
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self._digest.add(text)
            self.count += 1
            yield text

    def hexdigest(self) -> str:
        """Returns the digest of the texts so far."""
        return self._digest.hexdigest()
