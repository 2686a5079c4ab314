"""The interface that preparing its data requires of a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from t2tp.problems.data.sample import Sample, Samples, StoredExample
from t2tp.problems.prepare.split_samples import ShuffledSamples


class WrongOptionError(ValueError):
    """Raised for an option with which no data can be made, before anything is made."""


class Preparable(Protocol):
    """The interface; `Problem` implements and documents it."""

    @property
    def name(self) -> str:
        """The name it is registered by."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, the training split first."""

    def generation_options(self) -> dict[str, Any]:
        """Returns the options that determine the data."""

    def data_dependencies(self) -> dict[str, Any]:
        """Returns what else the data depend on; raises `WrongOptionError` early."""

    def download(self, directory: Path, tmp_dir: Path) -> None:
        """Downloads the sources of the samples."""

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Opens the samples of a split."""

    def make_vocabulary(self, directory: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the vocabulary, and returns the name of its file; "" without one."""

    def parts_in(self, directory: Path) -> Mapping[Path, Preparable]:
        """Returns the problems whose data are made inside this directory, by subdirectory."""

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtype of each stored column."""

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that encodes a sample for storage."""

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns the origin of the samples, for the manifest."""
