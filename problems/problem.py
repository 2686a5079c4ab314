"""Problem: a task, its data and its metrics.

A problem is a registered class:

    problem = problems.find("languagemodel_python_stdlib")
    problem.prepare(data_dir)
    stream = problem.stream(data_dir, "train", batch_size=64, length=256, seed=1)
    stream[1000]["targets"][0:8, :]  # rows 0 to 7 of the batch of step 1000

A family of problems (`Text2TextProblem`, `Image2ClassProblem`, ...) defines how a sample is encoded
and stored as an example, and the features of a batch. A problem of the family provides the samples
(`samples`). The data are in `data_dir/<name>/`.
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
from t2tp.object_store.mirror import pulled
from t2tp.problems.codec import Codec
from t2tp.problems.data import batch_stream
from t2tp.problems.data.columns import Column
from t2tp.problems.data.manifest import DamagedDataError, Manifest
from t2tp.problems.data.row_index import IndexDirectory, check_indexes
from t2tp.problems.data.shards import shard_name
from t2tp.problems.generated_images import GeneratedImages
from t2tp.problems.prepare import prepare, prepared
from t2tp.problems.prepare.preparable import Preparable
from t2tp.problems.prepare.settings import BeamSettings, GenerationSettings
from t2tp.problems.text_scores import score
from t2tp.problems.vocab.vocabulary import END_OF_DOCUMENT, Vocabulary
from t2tp.suggestions import check_known

TRAIN = "train"

# A value of `Problem.eos_id`: sequences have a fixed length and no EOS.
NO_EOS = -1

# The scores of decoded text, unless a problem names others.
_DEFAULT_SCORES = ("exact_match",)

AnyPath = str | PathLike[str]


class Problem(Preparable):
    """The base class of all problems.

    Attributes:
      features: named dimensions and dtype of each feature of a batch; a family defines them.
      splits: the splits. Training reads the first split, shuffled and repeated. The other splits
        are read once, in order.
      metric_names: evaluation metrics, from `metrics.METRICS`.
      decode_metric_names: scores of decoded text, from `text_scores.SCORES`; if empty,
        "exact_match".
      eos_id: the token that ends a sequence of targets, or `NO_EOS`.
      class_names: the names of classes 0, 1, ..., if targets are classes.
      reading_options: the options that do not determine the stored data, but how they are read.
      hparams_changes: values that suit the problem, by hparam; hparams that the model lacks are
        ignored.
      given_options: the options that were given, with their values.
      warns_of_changes: whether the next check of the data warns of changed sources.
    """

    features: Mapping[str, batch_stream.FeatureSpec]
    splits: tuple[str, ...] = (TRAIN, "validation", "test")
    metric_names: tuple[str, ...] = ("loss", "accuracy", "neg_log_perplexity", "perplexity")
    decode_metric_names: tuple[str, ...] = ()
    eos_id: int = END_OF_DOCUMENT
    class_names: tuple[str, ...] = ()
    reading_options: tuple[str, ...] = ()
    hparams_changes: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: str = ""):
        """Parses options such as "vocab_size=4096,arrangement=packed".

        Raises:
          ValueError: the problem has no such option, or a value is not of its type.
        """
        self.options = self.default_options()
        try:
            self.given_options = self.options.parse(options)
        except ValueError as error:
            raise ValueError(f"options of {self.name}: {error}") from error
        self.warns_of_changes = True

    @property
    def name(self) -> str:
        """The registered name: the name of the class in snake_case."""
        return registry.snake_case(type(self).__name__)

    # Methods that a problem defines, in addition to `Preparable`'s.

    def changed_sources(self, directory: Path) -> str:
        """Describes the sources that have changed since the data were made.

        Returns "" if no source has changed or the sources are not available.
        """
        return ""

    # Methods that a family defines, in addition to `Preparable`'s.

    def default_options(self) -> HParams:
        """Declares the options with their defaults."""
        return HParams()

    @abc.abstractmethod
    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns a function that decodes an example, given by its columns, into its sample."""

    @abc.abstractmethod
    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of ids of each feature that consists of ids.

        "targets" is always included: the number of tokens, classes or pixel values to predict.
        """

    @abc.abstractmethod
    def examples(self, data_dir: AnyPath, split: str, length: int) -> batch_stream.ExampleSource:
        """Returns the examples of a split, with at most `length` tokens each.

        The caller has checked the data and the split.
        """

    def train_examples(self, data_dir: AnyPath, length: int) -> batch_stream.ExampleSource:
        """Returns the training examples; see `examples`."""
        return self.examples(data_dir, self.splits[0], length)

    def train_stream(
        self, data_dir: AnyPath, batch_size: int, length: int, seed: int
    ) -> batch_stream.Stream:
        """Returns the endless stream of training batches; see `stream`."""
        return batch_stream.ShuffledStream(self.train_examples(data_dir, length), batch_size, seed)

    def counts(self, batch: batch_stream.Batch) -> dict[str, float]:
        """Returns the counts of a batch that metrics need in addition to the model's counts."""
        return {}

    # Inputs and outputs of the problem's models. The defaults follow from `features`.

    @property
    def reads_inputs(self) -> bool:
        """Whether models read inputs; if not, a prompt is the beginning of the targets."""
        return "inputs" in self.features

    @property
    def writes_tokens(self) -> bool:
        """Whether targets are sequences of tokens."""
        return "length" in self.features["targets"].dimensions

    @property
    def writes_classes(self) -> bool:
        """Whether targets are classes, one per example."""
        return self.features["targets"].dimensions == ("batch",)

    @property
    def generated_images(self) -> GeneratedImages | None:
        """The format of the images that models generate; None without images."""
        return None

    def codec(self, data_dir: AnyPath) -> Codec | None:
        """Returns the codec that converts between text and tokens; None if targets are not text."""
        return None

    def vocabulary(self, data_dir: AnyPath) -> Vocabulary | None:
        """Returns the vocabulary of prepared data; None if there is no text."""
        return None

    # Common to all problems.

    def generation_options(self) -> dict[str, Any]:
        """Returns the values of the options that determine the stored data."""
        options = self.options.values().items()
        return {name: value for name, value in options if name not in self.reading_options}

    def default_generation_options(self) -> dict[str, Any]:
        """Returns the defaults of the options that determine the stored data."""
        defaults = self.default_options()
        return {name: defaults.get(name) for name in self.generation_options()}

    def change_hparams(self, hparams: HParams, data_dir: AnyPath | None = None) -> None:
        """Sets the problem's values in a model's hparams, before the user's values are set."""
        for name, value in self.hparams_changes.items():
            if name in hparams.values():
                hparams.set(name, value)

    def decode_metrics(
        self, predictions: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """Scores decoded texts by the names in `decode_metric_names`; see `text_scores.score`."""
        return score(self.decode_metric_names or _DEFAULT_SCORES, predictions, references)

    def directory(self, data_dir: AnyPath) -> Path:
        """Returns the directory of the problem's data."""
        return pulled(Path(data_dir) / self.name)

    def prepare(
        self,
        data_dir: AnyPath,
        tmp_dir: AnyPath | None = None,
        overwrite: bool = False,
        num_shards: int | None = None,
        num_workers: int | None = 1,
        max_bad_samples: int | None = None,
        beam: BeamSettings | None = None,
    ) -> Manifest:
        """Generates the data atomically, unless they exist already.

        Reuses the finished shards of an interrupted attempt.

        Args:
          data_dir: directory with a subdirectory for each problem.
          tmp_dir: directory that keeps downloads. Default: a temporary directory.
          overwrite: generate the data again; the old data are replaced only on success.
          num_shards: number of shards of the train split; the batches do not depend on it. None:
            one per 500 samples, at most 64.
          num_workers: max number of encoding processes; the files do not depend on it. None: the
            number that is estimated to be fastest, at most 32 and at most one per core.
          max_bad_samples: max number of unusable samples to skip; they are counted and reported.
            None: one in 1,000.
          beam: settings for generating the shards with Apache Beam instead of local processes. The
            files do not depend on it.

        Raises:
          ValueError: existing data are damaged (and `overwrite` is off), or no data can be made
            from the sources.
          OSError: the directory cannot be written.
        """
        settings = GenerationSettings(num_shards, num_workers, max_bad_samples, beam)
        for problem in self.with_own_data():
            directory = problem.directory(data_dir)
            if overwrite or not directory.exists():
                prepare.build(problem, directory, tmp_dir, overwrite, settings)
            elif problem is not self:  # Before the next problem's data, which may take hours.
                problem.check_prepared(data_dir)
        return self.check_prepared(data_dir)

    def with_own_data(self) -> Sequence[Problem]:
        """Returns the problems whose data `prepare` makes."""
        return [self]

    def digest(self, data_dir: AnyPath) -> str:
        """Returns a digest that identifies the data: a SHA-256 of the files' checksums."""
        return self.check_prepared(data_dir).digest()

    def check_prepared(self, data_dir: AnyPath) -> Manifest:
        """Checks in milliseconds that the data exist and are undamaged.

        Compares the sizes of all files, and the checksums of small files such as the vocabulary,
        with the manifest. Blocks of large files are checked when they are first read.

        Raises:
          FileNotFoundError: there are no data; the message has the command that generates them.
          ValueError: the data are damaged, or were generated with other options.
        """
        directory, command = self.directory(data_dir), self.datagen_command(data_dir)
        manifest = prepared.check(self.name, directory, self.given_options, command)
        if self.warns_of_changes:
            self.warns_of_changes = False
            if changed := self.changed_sources(directory):
                logging.warning(
                    f"the data of {self.name} are older than their sources: {changed}; make them"
                    f" again with\n  {command} --overwrite"
                )
        return manifest

    def check_contents(self, data_dir: AnyPath, num_workers: int = 1) -> Manifest:
        """Checks every byte of the data, reading `num_workers` files at a time."""
        directory, command = self.directory(data_dir), self.datagen_command(data_dir)
        manifest = prepared.check(self.name, directory, self.given_options, command)
        # Opened first, which compares the sizes of large files with their checksums.
        stored = [self.stored(data_dir, split) for split in self.splits]
        with prepared.advising(self.name, command):
            manifest.check_contents(directory, num_workers, self.name)
        check_indexes(self.index_directory(data_dir).path)
        for columns in stored:
            for column in columns.values():
                column.check()
        return manifest

    def datagen_command(self, data_dir: AnyPath) -> str:
        """Returns the command that makes the data again with the same options."""
        return prepared.datagen_command(
            self.name,
            type(self).__module__.partition(".")[0],
            data_dir,
            self.directory(data_dir),
            self.default_generation_options(),
            self.given_options,
        )

    def stream(
        self, data_dir: AnyPath, split: str, batch_size: int, length: int, seed: int = 0
    ) -> batch_stream.Stream:
        """Returns the batches of a split, by step.

        Args:
          data_dir: directory of the prepared data.
          split: one of `splits`.
          batch_size: number of rows of the global batch.
          length: max number of tokens in a row.
          seed: seed of the shuffled order.

        Returns:
          An endless, shuffled stream for the first split; a `OnePassStream` for any other split.

        Raises:
          FileNotFoundError, ValueError: see `check_prepared`; or an argument is invalid.
        """
        self.check_split(split)
        for name, size in (("batch_size", batch_size), ("length", length)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, is {size}")
        self.check_prepared(data_dir)
        if split == self.splits[0]:
            return self.train_stream(data_dir, batch_size, length, seed)
        return batch_stream.OnePassStream(self.examples(data_dir, split, length), batch_size)

    def stored(self, data_dir: AnyPath, split: str) -> dict[str, Column]:
        """Returns the stored columns of a split; the caller has checked the data."""
        directory = self.directory(data_dir)
        manifest, ids = Manifest.read(directory), self.vocab_sizes(data_dir)
        missing = [
            *(self.columns(directory).keys() - manifest.columns),
            *({split} - {*manifest.splits}),
        ]
        if missing:
            raise DamagedDataError(f"{directory} has no {missing[0]} of {self.name}: make it again")
        sizes = manifest.splits[split]
        shards = [shard_name(split, shard, sizes.shards) for shard in range(sizes.shards)]
        columns = {
            name: Column(
                [directory / f"{each}.{name}" for each in shards], np.dtype(dtype), ids.get(name)
            )
            for name, dtype in manifest.columns.items()
        }
        for name, column in columns.items():
            wanted = sizes.examples, sizes.values.get(name)
            if not column.size or (len(column), column.size) != wanted:
                raise DamagedDataError(
                    f"{directory}: {split} has {len(column):,} examples with {column.size:,} values"
                    f" of {name}, other than its manifest says: make it again"
                )
        return columns

    def index_directory(self, data_dir: AnyPath) -> IndexDirectory:
        """Returns the directory of the row indexes; the caller has checked the data."""
        directory = self.directory(data_dir)
        return IndexDirectory(directory / ".index", Manifest.read(directory).digest())

    def decode_example(self, data_dir: AnyPath, split: str, number: int) -> dict[str, Any]:
        """Returns the sample of a stored example.

        `number` is the example's index, from 0, in the order of the files.

        Raises:
          IndexError: the split has fewer examples.
        """
        self.check_split(split)
        columns = self.stored(data_dir, split)
        count = len(next(iter(columns.values())))
        if not 0 <= number < count:
            raise IndexError(f"there is no example {number}: {split} of {self.name} has {count}")
        decode = self.decoder(self.directory(data_dir))
        return decode({name: column.example(number) for name, column in columns.items()})

    def check_split(self, split: str) -> None:
        """Raises ValueError if the problem has no such split."""
        check_known(split, self.splits, f"splits of {self.name}", f"unknown split {split!r}")
