"""Opens the samples of a problem's splits while its data are made.

Samples from generators are pickled into files that only the same attempt reads: each attempt begins
with `remove_spooled`, and refuses links, so that it never reads another person's pickles.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from t2tp.problems.data.sample import Sample, Samples
from t2tp.problems.prepare.preparable import Preparable
from t2tp.problems.prepare.settings import GenerationSettings
from t2tp.problems.prepare.split_samples import BadSamples, ShuffledSamples

# Subdirectory of the unfinished data, for samples from generators.
_SPOOLED = ".samples"


class OpenSamples:
    """The samples of a problem's splits; the first call for a split opens the split's samples.

    Attributes:
      problem: the problem.
      directory: directory in which its data are being made.
      scratch: directory of its downloads.
      settings: settings of the generation.
    """

    def __init__(
        self, problem: Preparable, directory: Path, scratch: Path, settings: GenerationSettings
    ):
        self.scratch = scratch
        self.settings = settings
        self.problem = problem
        self.directory = directory
        self._opened: dict[str, Samples] = {}
        self._inside: dict[Path, OpenSamples] = {}

    def __call__(self, split: str) -> ShuffledSamples:
        """Returns the samples of a split; all splits share a counter of bad samples."""
        return ShuffledSamples(self.open(split), split, self._bad)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments; the process that receives them opens the samples again."""
        return OpenSamples, (self.problem, self.directory, self.scratch, self.settings)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The number of samples of each split; raises ValueError if a split has none."""
        counts = {split: len(self.open(split)) for split in self.problem.splits}
        for split, count in counts.items():
            if not count:
                raise ValueError(f"{self.problem.name} has no samples for its split {split}")
        return counts

    @cached_property
    def bad_limit(self) -> int:
        """The max number of bad samples of all splits."""
        return self.settings.bad_limit(self.counts)

    @cached_property
    def _bad(self) -> BadSamples:
        return BadSamples(self.problem.name, self.bad_limit)

    def open(self, split: str) -> Samples:
        """Returns the samples of a split; samples from a generator are written to disk first.

        Raises:
          ValueError: the problem's `samples` returned something that is not iterable.
        """
        if split in self._opened:
            return self._opened[split]
        spooled = self.directory / _SPOOLED / split
        samples: Samples | Iterable[Sample] | None = None
        if not spooled.exists():
            samples = self.problem.samples(split, self.directory, self.scratch)
            if not isinstance(samples, Samples | Iterable):
                raise ValueError(
                    f"{self.problem.name}: samples({split!r}) returned {samples!r}; give a list, "
                    "or what has a length and any sample by its number, or a generator"
                )
            if not isinstance(samples, Samples):
                _spool(samples, spooled)
        opened = samples if isinstance(samples, Samples) else _Spooled(spooled)
        self._opened[split] = opened
        return opened

    def inside(self, part: Preparable, directory: Path) -> OpenSamples:
        """Returns the samples of one of a mixture's problems; see `Preparable.parts_in`."""
        return self._inside.setdefault(
            directory, OpenSamples(part, directory, self.scratch, self.settings)
        )


def remove_spooled(directory: Path) -> None:
    """Removes the samples that `OpenSamples` has written below a directory."""
    for spooled in [*directory.rglob(_SPOOLED)]:
        shutil.rmtree(spooled)


def _spool(samples: Iterable[Sample], directory: Path) -> None:
    """Writes samples in order; the directory gets its name when it is complete."""
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with (unfinished / "samples").open("wb") as file, (unfinished / "begins").open("wb") as begins:
        for sample in samples:
            begins.write(np.int64(file.tell()).tobytes())
            pickle.dump(sample, file, protocol=pickle.HIGHEST_PROTOCOL)
    unfinished.rename(directory)


class _Spooled:
    """Samples that `_spool` wrote, with random access."""

    def __init__(self, directory: Path):
        self._file = (directory / "samples").open("rb")
        self._begins = np.fromfile(directory / "begins", np.int64)

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, number: int) -> Sample:
        self._file.seek(self._begins[number], os.SEEK_SET)
        return pickle.load(self._file)
