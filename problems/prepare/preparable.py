"""The part of a problem that makes its data."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2tp.problems.data.sample import Sample, Samples, StoredExample
from t2tp.problems.prepare.settings import BeamSettings
from t2tp.problems.prepare.split_samples import ShuffledSamples


class WrongOptionError(ValueError):
    """An option is wrong; raised before any data are made."""


class Preparable(abc.ABC):
    """The interface that `prepare.build` calls; a base class of `Problem`.

    Attributes:
      splits: the names of the splits, the training split first.
      beam: settings for TFDS datasets that `download` generates with Beam; None: Beam's defaults.
    """

    splits: tuple[str, ...]
    beam: BeamSettings | None = None

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The registered name of the problem."""

    @abc.abstractmethod
    def generation_options(self) -> dict[str, Any]:
        """Returns the options that determine the data."""

    # Methods that a problem defines.

    @abc.abstractmethod
    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Opens the samples of a split: a sequence of mappings from names to values.

        The result may be a list or a generator. The samples of a generator are first written to
        disk. Several processes open the same samples, after `download`. The family of the problem
        defines the values of a sample.

        The data are being made in `directory`; `tmp_dir` is the directory of `download`.
        """

    def download(self, directory: Path, tmp_dir: Path) -> None:  # noqa: B027
        """Downloads the sources of the samples, unless they are there already.

        The data are being made in `directory`, and files written into it are kept. `tmp_dir` is for
        downloads and other temporary files.
        """

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns the origin of the samples, for the manifest: names to JSON values."""
        return {}

    def data_dependencies(self) -> dict[str, Any]:
        """Returns dependencies of the data in addition to the options: names to JSON values.

        The output of an interrupted attempt is reused only if these dependencies are unchanged.

        Raises:
          WrongOptionError: no data can be made with the options.
        """
        return {}

    # Methods that a family of problems defines.

    def make_vocabulary(self, directory: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the vocabulary into the directory of the data, unless it is there already.

        `samples` returns the samples of a split.

        Returns:
          The name of the vocabulary's file; "" without a vocabulary.
        """
        return ""

    def parts_in(self, directory: Path) -> Mapping[Path, Preparable]:
        """Returns subdirectory -> problem, for the problems whose data are made in `directory`."""
        return {}

    @abc.abstractmethod
    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtype of each stored column."""

    @abc.abstractmethod
    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that encodes a sample for storage.

        The function may raise `SkippedSampleError`, with the reason, to skip the sample.
        """
