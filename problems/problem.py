"""Problem: what is learned, from which data, and how it is scored.

A problem is a registered class:

    problem = problems.find("languagemodel_python_stdlib")
    problem.prepare(data_dir)
    stream = problem.stream(data_dir, "train", batch_size=64, length=256, seed=1)
    stream[1000]["targets"][0:8, :]  # rows 0 to 7 of the batch of step 1000

Its data lie in `data_dir/<name>/`. A family of problems (`Text2TextProblem`, `Image2ClassProblem`,
...) says what an example is, how it is stored and what a batch has; a problem of the family says
where the samples come from (`samples`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from absl import logging

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.nearest import nearest
from t2tp.problems import making, prepared, publish
from t2tp.problems.columns import Column, open_columns
from t2tp.problems.generation import GenerationSettings, Sample, Samples, ShuffledSamples, Stored
from t2tp.problems.manifest import Manifest
from t2tp.problems.metrics import compute
from t2tp.problems.row_index import IndexDirectory
from t2tp.problems.stream import (
    DATA_ORDER,
    Batch,
    ExampleSource,
    FeatureSpec,
    OnePassStream,
    ShuffledStream,
    Stream,
)
from t2tp.problems.text_scores import score

TRAIN = "train"

AnyPath = str | PathLike[str]


class WrongOptionError(ValueError):
    """An option has a value with which there can be no data; nothing has been made."""


class Problem(abc.ABC):
    """The base of all problems.

    Attributes:
        splits: names of the parts of the data, the first of which is trained on: it is shuffled
            and repeated. The others are gone through once, in order.
        metric_names: what an evaluation gives, of those in `metrics.METRICS`.
        decode_metric_names: what decoded text is scored by, of those in `text_scores.SCORES`.
        making_options: the options that decide what is in the files.
        hparams_changes: values for hparams that suit the problem, set where the model's hparams
            set declares them.
        options: the problem's options.
        given_options: those of them that were given, and the values.
        warns_of_changes: whether the next look at its data says what has changed of their sources.
        data_order: version of the order in which it is trained on; see `stream.DATA_ORDER`.
    """

    splits: tuple[str, ...] = (TRAIN, "validation", "test")
    metric_names: tuple[str, ...] = ("loss", "accuracy", "neg_log_perplexity", "perplexity")
    decode_metric_names: tuple[str, ...] = ()
    making_options: tuple[str, ...] = ()
    hparams_changes: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: str = ""):
        """Takes options such as "vocab_size=4096,arrangement=packed".

        Raises:
            ValueError: the problem has no such option, or a value is not of its type.
        """
        self.options = self.default_options()
        try:
            self.given_options = self.options.parse(options)
        except ValueError as error:
            raise ValueError(f"options of {self.name}: {error}") from error
        self.warns_of_changes = True
        self.data_order = DATA_ORDER

    @property
    def name(self) -> str:
        """The name it is registered by: its class's, in snake_case."""
        return registry.snake_case(type(self).__name__)

    # What a problem says.

    @abc.abstractmethod
    def samples(self, split: str, folder: Path, tmp_dir: Path) -> Samples:
        """Opens the samples of a split: names to values, any of them by its number.

        A list will do, and so will a generator, whose samples are put on the disk. Several
        processes open the same samples, after `download`. What a sample has is said by the family.

        Args:
            split: one of `splits`.
            folder: where the problem's data are being made.
            tmp_dir: what `download` was given.
        """

    def download(self, folder: Path, tmp_dir: Path) -> None:  # noqa: B027
        """Brings here what the samples are read from, if they are not here yet.

        Args:
            folder: where the problem's data are being made; what is put there stays.
            tmp_dir: for downloads and other things that are not needed afterwards.
        """

    def origin(self, folder: Path, tmp_dir: Path) -> dict[str, Any]:
        """Says for the manifest where the samples came from: names to JSON values."""
        return {}

    def plan(self) -> dict[str, Any]:
        """Says what the data will depend on besides the options: names to JSON values.

        What an interrupted run has made is used by the next only if this is the same.
        """
        return {}

    def changed_sources(self, folder: Path) -> str:
        """Says what has changed of that which the data in the folder were made from.

        Returns:
            Half a sentence; "" if nothing has, or it is not there to be looked at.
        """
        return ""

    # What a family says.

    def default_options(self) -> HParams:
        """Declares the options, with their defaults."""
        return HParams()

    def make_vocabulary(self, folder: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the vocabulary into the folder, unless it is there already.

        Args:
            folder: where the problem's data are being made.
            samples: split -> its samples.

        Returns:
            The name of its file; "" without one.
        """
        return ""

    @abc.abstractmethod
    def columns(self, folder: Path) -> dict[str, np.dtype]:
        """Returns the dtype of each column that is stored."""

    @abc.abstractmethod
    def encoder(self, folder: Path) -> Callable[[Sample], Stored]:
        """Returns what turns a sample into what is stored of it.

        It may raise `SkippedSampleError`, with the reason, to leave the sample out.
        """

    @abc.abstractmethod
    def decoder(self, folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns what turns stored columns back into the sample."""

    @abc.abstractmethod
    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns how many different ids a feature has, for those that are ids.

        "targets" is always there: the number of tokens, classes or pixel values to predict.
        """

    @abc.abstractmethod
    def features(self, batch_size: int, length: int) -> dict[str, FeatureSpec]:
        """Returns the named dimensions and the dtype of each feature of a batch of this size."""

    @abc.abstractmethod
    def examples(self, data_dir: AnyPath, split: str, length: int) -> ExampleSource:
        """Returns the examples of a split, of at most `length` tokens each.

        The data have been checked and the split is one of `splits`.
        """

    def train_examples(self, data_dir: AnyPath, length: int) -> ExampleSource:
        """Returns the examples that are trained on; see `examples`."""
        return self.examples(data_dir, self.splits[0], length)

    def train_stream(self, data_dir: AnyPath, batch_size: int, length: int, seed: int) -> Stream:
        """Returns the endless batches that are trained on; see `stream`."""
        return ShuffledStream(self.train_examples(data_dir, length), batch_size, seed)

    def counts(self, batch: Batch) -> dict[str, float]:
        """Counts in a batch of `stream` what `metrics` divides by and no model knows."""
        return {}

    # What all problems have in common.

    def use_data_order(self, version: int) -> None:
        """Takes the training examples in the order that a run was started with.

        Args:
            version: see `stream.DATA_ORDER`.

        Raises:
            ValueError: there is no such version yet.
        """
        if version > DATA_ORDER:
            raise ValueError(
                f"the run's data are in order {version}, and this version of t2tp knows those up "
                f"to {DATA_ORDER}: resume it with the version of t2tp that started it"
            )
        self.data_order = version

    def made_with(self) -> dict[str, Any]:
        """Returns the options that decide what is in the files, with their values."""
        return {name: self.options.get(name) for name in self.making_options}

    def default_made_with(self) -> dict[str, Any]:
        """Returns the same options with their defaults."""
        defaults = self.default_options()
        return {name: defaults.get(name) for name in self.making_options}

    def make(self, folder: Path, scratch: Path, settings: GenerationSettings) -> dict[str, Any]:
        """Puts all but the manifest into a folder, as far as it is not there yet.

        Args:
            folder: where the data are being made.
            scratch: for downloads and what is not needed afterwards.
            settings: how they are made.

        Returns:
            The arguments of `making.describe`.
        """
        return making.fill(self, folder, scratch, settings)

    def vocab_size(self, data_dir: AnyPath) -> int:
        """Returns the number of different ids to predict."""
        return self.vocab_sizes(data_dir)["targets"]

    def change_hparams(self, hparams: HParams) -> None:
        """Sets what suits the problem in a model's hparams; to be called before the user's own."""
        for name, value in self.hparams_changes.items():
            if name in hparams.values():
                hparams.set(name, value)

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns the figures of an evaluation, by the names in `metric_names`.

        Args:
            sums: of what the model counted in all batches and of what `counts` returns;
                "tokens" is how many symbols were predicted. See `metrics.METRICS`.

        Raises:
            ValueError: a sum that a metric needs is not there, or nothing was predicted.
        """
        return compute(self.metric_names, sums)

    def decode_metrics(
        self, predictions: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """Scores decoded texts, by the names in `decode_metric_names`; see `text_scores.score`."""
        return score(self.decode_metric_names, predictions, references)

    def folder(self, data_dir: AnyPath) -> Path:
        """Returns where the problem's data lie."""
        return Path(data_dir) / self.name

    def prepare(
        self,
        data_dir: AnyPath,
        tmp_dir: AnyPath | None = None,
        overwrite: bool = False,
        num_shards: int | None = None,
        num_workers: int | None = 1,
        max_bad_samples: int | None = None,
    ) -> Manifest:
        """Makes the data, unless they are there already. They appear whole or not at all.

        What a killed or interrupted attempt has finished is used.

        Args:
            data_dir: where the data of all problems lie, each in a folder of its own.
            tmp_dir: where downloads stay; without it they are removed at the end.
            overwrite: makes the data again, and replaces what there is only once that succeeded.
            num_shards: in how many parts train is stored; by default one for each 500 samples,
                up to 64. The batches do not depend on it.
            num_workers: processes that encode; the files do not depend on it. None: as many as are
                worth it, up to one for each core.
            max_bad_samples: samples that cannot be used are left out, counted and named, up to this
                number; by default one in 1,000.

        Returns:
            What the folder holds.

        Raises:
            ValueError: what there is is damaged (and `overwrite` is off), or no data can be made
                from what the problem finds.
            OSError: the folder cannot be written.
        """
        if num_shards is not None:
            check_positive(num_shards=num_shards)
        if num_workers is not None:
            check_positive(num_workers=num_workers)
        if max_bad_samples is not None and max_bad_samples < 0:
            raise ValueError(f"max_bad_samples must be at least 0, is {max_bad_samples}")
        folder = self.folder(data_dir)
        if folder.exists() and not overwrite:
            return self.check_prepared(data_dir)
        self.plan()  # what is wrong with the options is said before anything is touched
        with publish.only_one_maker(folder):
            if folder.exists() and not overwrite:  # made while this process waited
                return self.check_prepared(data_dir)
            settings = GenerationSettings(num_shards, num_workers, max_bad_samples)
            making.make(self, folder, tmp_dir, settings)
        return Manifest.read(folder)

    def digest(self, data_dir: AnyPath) -> str:
        """Returns what tells these data from others: a SHA-256 of the files' checksums.

        Raises:
            FileNotFoundError, DamagedDataError: see `check_prepared`.
        """
        return self.check_prepared(data_dir).digest()

    def check_prepared(self, data_dir: AnyPath) -> Manifest:
        """Checks that the data are there and whole; takes milliseconds.

        Sizes of all files are compared with the manifest, and checksums of the small ones, the
        vocabulary among them. The blocks of the others are checked when they are first read.

        Returns:
            What the folder holds.

        Raises:
            FileNotFoundError: there are none; says the command that makes them.
            ValueError: they are damaged, or were made with other options than those given to the
                problem; says what is wrong and the command.
        """
        made = prepared.check(self, data_dir)
        if self.warns_of_changes:
            self.warns_of_changes = False
            if changed := self.changed_sources(self.folder(data_dir)):
                logging.warning(
                    "the data of %s do not have what has changed since they were made: %s; make "
                    "them again with\n  %s --overwrite",
                    self.name,
                    changed,
                    self.datagen_command(data_dir),
                )
        return made

    def check_contents(self, data_dir: AnyPath, num_workers: int = 1) -> Manifest:
        """Checks the data as `check_prepared` does, and every byte of them.

        What stands in two splits is looked for again, and said.

        Args:
            data_dir: where they are.
            num_workers: how many files are read at a time.
        """
        made = prepared.check_contents(self, data_dir, num_workers)
        making.report_overlaps(
            self.name, {split: [self.stored(data_dir, split)] for split in self.splits}
        )
        return made

    def datagen_command(self, data_dir: AnyPath) -> str:
        """Returns the command that makes the data, with the options they were made with before."""
        return prepared.datagen_command(self, data_dir)

    def stream(
        self,
        data_dir: AnyPath,
        split: str,
        batch_size: int,
        length: int,
        seed: int = 0,
    ) -> Stream:
        """Returns the batches of a split, by step.

        Args:
            data_dir: where the data were prepared.
            split: one of `splits`.
            batch_size: examples of the global batch.
            length: tokens of an example.
            seed: which shuffle; only the first of `splits` is shuffled.

        Returns:
            For the first of `splits` an endless stream; else a `OnePassStream`.

        Raises:
            FileNotFoundError, ValueError: as `check_prepared`, or an argument cannot be.
        """
        self.check_split(split)
        check_positive(batch_size=batch_size, length=length)
        self.check_prepared(data_dir)
        if split == self.splits[0]:
            return self.train_stream(data_dir, batch_size, length, seed)
        return OnePassStream(self.examples(data_dir, split, length), batch_size)

    def stored(self, data_dir: AnyPath, split: str) -> dict[str, Column]:
        """Returns the stored columns of a split. The data have been checked."""
        folder = self.folder(data_dir)
        made = Manifest.read(folder)
        dtypes = {column: np.dtype(dtype) for column, dtype in made.columns.items()}
        return open_columns(folder, split, made.splits[split].shards, dtypes)

    def index_directory(self, data_dir: AnyPath) -> IndexDirectory:
        """Returns where the indexes of the data's rows are kept. The data have been checked."""
        folder = self.folder(data_dir)
        return IndexDirectory(folder / ".index", Manifest.read(folder).digest())

    def decode_example(self, data_dir: AnyPath, split: str, number: int) -> dict[str, Any]:
        """Returns the sample that a stored example was made from.

        Args:
            data_dir: where the data were prepared.
            split: one of `splits`.
            number: of the example, in the order of the files.

        Raises:
            IndexError: there are not as many.
        """
        self.check_split(split)
        columns = self.stored(data_dir, split)
        count = len(next(iter(columns.values())))
        if not 0 <= number < count:
            raise IndexError(f"example {number} asked for, {split} of {self.name} has {count}")
        decode = self.decoder(self.folder(data_dir))
        return decode({name: column.example(number) for name, column in columns.items()})

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
