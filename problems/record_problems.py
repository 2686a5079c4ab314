"""Problems on a user's records: JSON lines, CSV, Parquet, and Hugging Face directories."""

import glob
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.atomic_file import write_text
from t2tp.hparam import HParams
from t2tp.problems.data.sample import (
    GeneratedSamples,
    Sample,
    Samples,
    SkippedSampleError,
    StoredExample,
)
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.prepare.split_samples import ShuffledSamples
from t2tp.problems.problem import AnyPath
from t2tp.problems.sources.records import ENDINGS, Records
from t2tp.problems.text_files import FileProblem
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import Text2TextProblem
from t2tp.typed_files import read_json

_CLASSES_FILE = "classes.json"

# Max number of classes: more distinct targets are probably texts.
_MAX_CLASSES = 1000

# Names of the splits in Hugging Face's datasets.
_SPLIT_NAMES = {
    "files": ("train",),
    "validation_files": ("validation", "valid", "dev"),
    "test_files": ("test",),
}


# Patterns of data files in a directory. The first pattern that matches a file is used. The first in
# the list is `data-*.arrow`, because a directory that Hugging Face's `datasets` saved also has JSON
# metadata, and Arrow files of cached results.
_IN_DIRECTORIES = (
    "data-*.arrow",
    *(f"*{ending}" for ending in (".parquet", ".arrow", ".jsonl", ".ndjson")),
    *(f"*{ending}" for ending in (".csv", ".tsv", ".json")),
)


class RecordProblem(FileProblem):
    """Samples from records: a mixin. It must be the first base, before the class of the problem.

    Options:
        files: a path, a pattern, or a directory that `datasets` saved (`save_to_disk`) or that
            contains files such as Parquet. If the directory has splits, they are used.
        validation_files, test_files: like `files`, for held-out data.

    Attributes:
      field_defaults: the options that name the fields read from a record, and their defaults.
    """

    field_defaults: Mapping[str, str]

    def __init__(self, options: str = ""):
        """Parses options, and replaces directories with patterns of their files."""
        super().__init__(options)
        for option in _SPLIT_NAMES:
            directory = Path(self.options.get(option)).expanduser()
            if self.options.get(option) and directory.is_dir():
                self._take_directory(option, directory)

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        for name, default in self.field_defaults.items():
            options.add(name, default, help="name of a value of each record; a/b: b inside a")
        return options

    def _take_directory(self, option: str, directory: Path) -> None:
        """Sets the options to patterns of a directory's files."""
        patterns = {option: find_pattern(directory, ())}
        if option == "files":
            by_split = {
                name: find_pattern(directory, words) for name, words in _SPLIT_NAMES.items()
            }
            if by_split["files"]:
                patterns = by_split
            if patterns.get("test_files") and not patterns["validation_files"]:
                # `FileProblem` then takes half of the held-out data for test.
                patterns["validation_files"] = patterns.pop("test_files")
        if not patterns[option]:
            raise ValueError(
                f"options of {self.name}: {option}={directory}: the directory has no file that "
                f"ends in {', '.join(ENDINGS)}"
            )
        for name, pattern in patterns.items():
            if pattern and (name == option or not self.options.get(name)):
                self.options.set(name, pattern)
                self.given_options[name] = pattern

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the records; a sample has the fields that the options name."""
        records = Records(files[0], scratch)
        names = {option: self.options.get(option) for option in self.field_defaults}

        def sample(number: int) -> Sample:
            values = {option: records.value(number, name) for option, name in names.items()}
            if None in values.values():
                raise SkippedSampleError("a value is missing")
            return values

        return GeneratedSamples(len(records), sample)


def find_pattern(directory: Path, words: Sequence[str]) -> str:
    """Returns a pattern for the files of one format in a directory, or "" if there are none.

    Args:
      directory: directory of the files.
      words: names of a split; without words all files match. A file matches if a directory on its
        path, or the beginning of its own name, is one of these names, as in "train-00000.parquet".
    """
    for file in _IN_DIRECTORIES:
        patterns = [f"**/{word}/**/{file}" for word in words]
        patterns += [f"**/{word}[-.]{file}" for word in words]
        patterns += [f"**/{word}{file.removeprefix('*')}" for word in words if file.startswith("*")]
        for pattern in patterns or [f"**/{file}"]:
            if any(directory.glob(pattern)):
                return str(Path(glob.escape(str(directory))) / pattern)
    return ""


@registry.register_problem
class LanguagemodelRecords(RecordProblem, LanguageModelProblem):
    """Language modelling on records: --problem_options='files=reviews.jsonl,text=body'.

    Options, with the options of `RecordProblem` and `LanguageModelProblem`:
        text: name of the field with the document.
    """

    field_defaults = {"text": "text"}


@registry.register_problem
class Text2textRecords(RecordProblem, Text2TextProblem):
    """Text to text on records: --problem_options='files=pairs.csv,inputs=en,targets=de'.

    Options, with the options of `RecordProblem` and `Text2TextProblem`:
        inputs, targets: names of the fields.
    """

    field_defaults = {"inputs": "inputs", "targets": "targets"}


@registry.register_problem
class Text2classRecords(RecordProblem, Text2ClassProblem):
    """Text to class on records: --problem_options='files=mails.parquet,inputs=body,targets=spam'.

    The classes are the distinct values of the targets, sorted.

    Options, with the options of `RecordProblem` and `Text2ClassProblem`:
        inputs: name of the text field.
        targets: name of the class field: a number, a word, true or false.
    """

    field_defaults = {"inputs": "inputs", "targets": "targets"}

    def make_vocabulary(self, directory: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the classes and the vocabulary."""
        classes: set[str] = set()
        for sample in itertools.chain.from_iterable(map(samples, self.splits)):
            classes.add(str(sample["targets"]))
            if len(classes) > _MAX_CLASSES:  # checked early: texts would fill the memory
                raise ValueError(
                    f"{self.name}: the targets {self.options.targets!r} have {len(classes)} or "
                    f"more different values, and there may be {_MAX_CLASSES} classes: for texts "
                    "use text2text_records"
                )
        write_text(directory / _CLASSES_FILE, json.dumps(sorted(classes, key=_by_number)) + "\n")
        return super().make_vocabulary(directory, samples)

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns the encoder of a text and its class."""
        self._read_classes(directory)
        encode = super().encoder(directory)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        return lambda sample: encode(
            {"inputs": sample["inputs"], "label": numbers[str(sample["targets"])]}
        )

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns the decoder of a text and its class."""
        self._read_classes(directory)
        return super().decoder(directory)

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the numbers of tokens and of classes."""
        self.check_prepared(data_dir)
        self._read_classes(self.directory(data_dir))
        return super().vocab_sizes(data_dir)

    def _read_classes(self, directory: Path) -> None:
        self.class_names = read_json(directory / _CLASSES_FILE, tuple[str, ...])


def _by_number(name: str) -> tuple[bool, int, str]:
    """Returns a sort key: numbers by size, then words."""
    is_number = name.removeprefix("-").isdecimal()
    return (not is_number, int(name) if is_number else 0, name)
