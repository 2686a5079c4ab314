"""Problem: what is learned, from which data, and how it is scored.

A problem is a registered class, made without arguments and named by its class:

    problem = registry.problem("languagemodel_python_stdlib")()
    problem.prepare(data_dir)
    stream = problem.stream(data_dir, "train", batch_size=64, length=256, seed=1)
    stream[1000]["targets"][0:8, :]  # rows 0 to 7 of the batch of step 1000

Its data lie in `data_dir/<name>/`. A kind of problem (`LanguageModelProblem`) says how data are
stored and read back; a problem of that kind says where they come from.
"""

from __future__ import annotations

import abc
import math
import shlex
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from t2tp import registry
from t2tp.nearest import nearest
from t2tp.problems import publish
from t2tp.problems.manifest import DamagedDataError, Manifest, SplitSizes
from t2tp.problems.stream import (
    Batch,
    ExampleSource,
    FeatureSpec,
    OnePassStream,
    ShuffledStream,
)

TRAIN = "train"

AnyPath = str | PathLike[str]


class Generated(NamedTuple):
    """What `Problem.generate` wrote.

    Attributes:
        origin: where the data came from, for the manifest: names to JSON values.
        splits: sizes by the split's name.
    """

    origin: dict[str, Any]
    splits: dict[str, SplitSizes]


class Problem(abc.ABC):
    """The base of all problems.

    Attributes:
        splits: names of the parts of the data. "train" is shuffled and repeated; the others are
            gone through once, in order.
    """

    splits: tuple[str, ...] = (TRAIN, "validation", "test")

    @property
    def name(self) -> str:
        """The name it is registered by: its class's, in snake_case."""
        return registry.snake_case(type(self).__name__)

    # What a kind of problem says.

    @abc.abstractmethod
    def generate(self, folder: Path, tmp_dir: Path) -> Generated:
        """Makes the data; called by `prepare`.

        Args:
            folder: empty, to be filled with the files of the problem.
            tmp_dir: for downloads and other things that are not needed afterwards.
        """

    @abc.abstractmethod
    def vocab_size(self, data_dir: AnyPath) -> int:
        """Returns the number of different token ids."""

    @abc.abstractmethod
    def features(self, batch_size: int, length: int) -> dict[str, FeatureSpec]:
        """Returns the named dimensions and the dtype of each feature of a batch of this size."""

    @abc.abstractmethod
    def examples(self, data_dir: AnyPath, split: str, length: int) -> ExampleSource:
        """Returns the examples of a split, of at most `length` tokens each.

        The data have been checked and the split is one of `splits`.
        """

    @abc.abstractmethod
    def counts(self, batch: Batch) -> dict[str, float]:
        """Counts in a batch of `stream` what `metrics` divides by and no model knows."""

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns the figures of an evaluation from sums over all its batches.

        Args:
            sums: "nll" (nats), "tokens" (how many were predicted), "correct" (how many of those
                were the most probable), and the sums of what `counts` returns.

        Returns:
            loss (nats a token), accuracy, neg_log_perplexity and perplexity.

        Raises:
            ValueError: no token was predicted.
        """
        if not sums["tokens"] > 0:
            raise ValueError(f"no metrics without a predicted token: the sums are {dict(sums)}")
        loss = sums["nll"] / sums["tokens"]
        return {
            "loss": loss,
            "accuracy": sums["correct"] / sums["tokens"],
            "neg_log_perplexity": -loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
        }

    # What all problems have in common.

    def folder(self, data_dir: AnyPath) -> Path:
        """Returns where the problem's data lie."""
        return Path(data_dir) / self.name

    def prepare(
        self,
        data_dir: AnyPath,
        tmp_dir: AnyPath | None = None,
        overwrite: bool = False,
    ) -> Manifest:
        """Makes the data, unless they are there already. They appear whole or not at all.

        Args:
            data_dir: where the data of all problems lie, each in a folder of its own.
            tmp_dir: where downloads stay; without it they are removed at the end.
            overwrite: makes the data again, and replaces what there is only once that succeeded.

        Returns:
            What the folder holds.

        Raises:
            ValueError: what there is is damaged (and `overwrite` is off), or no data can be made
                from what the problem finds.
            OSError: the folder cannot be written.
        """
        folder = self.folder(data_dir)
        if folder.exists() and not overwrite:
            return self.check_prepared(data_dir)
        with publish.only_one_maker(folder):
            if folder.exists() and not overwrite:  # made while this process waited
                return self.check_prepared(data_dir)
            logging.info("making the data of %s in %s", self.name, folder)
            with publish.new_folder(folder) as partial:
                self._make(partial, tmp_dir)
        return Manifest.read(folder)

    def _make(self, folder: Path, tmp_dir: AnyPath | None) -> None:
        with publish.scratch_folder(folder, tmp_dir) as scratch:
            generated = self.generate(folder, scratch)
        Manifest.of_folder(folder, self.name, *generated).write(folder)

    def check_prepared(self, data_dir: AnyPath) -> Manifest:
        """Checks that the data are there and whole; takes milliseconds.

        Sizes of all files are compared with the manifest, and checksums of the small ones, the
        vocabulary among them.

        Returns:
            What the folder holds.

        Raises:
            FileNotFoundError: there are none; says the command that makes them.
            ValueError: they are damaged; says what is wrong and the command.
        """
        folder = self.folder(data_dir)
        command = shlex.join(["t2tp_datagen", f"--problem={self.name}", f"--data_dir={data_dir}"])
        if not folder.exists():
            raise FileNotFoundError(
                f"{folder} does not exist: make the data of {self.name} with\n  {command}"
            )
        try:
            manifest = Manifest.read(folder)
            manifest.check(folder)
        except DamagedDataError as error:
            raise DamagedDataError(
                f"the data of {self.name} are damaged: {error}\n"
                f"make them again with\n  {command} --overwrite"
            ) from error
        return manifest

    def stream(
        self,
        data_dir: AnyPath,
        split: str,
        batch_size: int,
        length: int,
        seed: int = 0,
    ) -> ShuffledStream | OnePassStream:
        """Returns the batches of a split, by step.

        Args:
            data_dir: where the data were prepared.
            split: one of `splits`.
            batch_size: examples of the global batch.
            length: tokens of an example.
            seed: which shuffle; only "train" is shuffled.

        Returns:
            For "train" an endless `ShuffledStream`; else a `OnePassStream`.

        Raises:
            FileNotFoundError, ValueError: as `check_prepared`, or an argument cannot be.
        """
        self.check_split(split)
        check_positive(batch_size=batch_size, length=length)
        self.check_prepared(data_dir)
        source = self.examples(data_dir, split, length)
        if split == TRAIN:
            return ShuffledStream(source, batch_size, seed)
        return OnePassStream(source, batch_size)

    def check_split(self, split: str) -> None:
        """Raises ValueError, with the nearest, if the data have no split of this name."""
        if split not in self.splits:
            known = nearest(split, self.splits, f"splits of {self.name}")
            raise ValueError(f"unknown split {split!r}: {known}")


def check_positive(**sizes: int) -> None:
    """Raises ValueError if one of the named sizes is less than 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, is {size}")
