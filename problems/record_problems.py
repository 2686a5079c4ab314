"""Problems on a user's records: JSON lines, CSV, Parquet, Hugging Face's directories."""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.problems.generation import Sample, Samples, ShuffledSamples, Stored
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.problem import AnyPath
from t2tp.problems.records import ENDINGS, Records
from t2tp.problems.samples import SkippedSampleError
from t2tp.problems.text_files import FileProblem, Made
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import Text2TextProblem
from t2tp.whole_file import write_text

_CLASSES_FILE = "classes.json"

# What has more different targets is hardly a matter of classes.
_MAX_CLASSES = 1000

# What the splits of Hugging Face's datasets are called.
_SPLIT_NAMES = {
    "files": ("train",),
    "validation_files": ("validation", "valid", "dev"),
    "test_files": ("test",),
}


# The data of a directory, whatever lies beside them: `datasets` has notes in JSON there, and other
# Arrow files for what it has computed.
_IN_DIRECTORIES = (
    "data-*.arrow",
    *(f"*{ending}" for ending in (".parquet", ".arrow", ".jsonl", ".ndjson")),
    *(f"*{ending}" for ending in (".csv", ".tsv", ".json")),
)


class RecordProblem(FileProblem):
    """Samples from records; to be put before the problem's family.

    Options:
        files: a path, a pattern, or a directory: one that `datasets` has saved (`save_to_disk`), or
            of Parquet files or the like. Where the directory has splits they are used.
        validation_files, test_files: the same, for what is held out.

    Attributes:
        field_defaults: the options that name the values of a record that are read, and what is read
            unless it is said.
    """

    file_options = ("files",)
    validation_options = ("validation_files",)
    test_options = ("test_files",)
    field_defaults: Mapping[str, str]

    def __init__(self, options: str = ""):
        """Takes options, and finds what a directory that is named has in it."""
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
        """Puts patterns of files in the place of a directory."""
        found = {option: find_pattern(directory, ())}
        if option == "files":
            by_split = {
                name: find_pattern(directory, words) for name, words in _SPLIT_NAMES.items()
            }
            if by_split["files"]:
                found = by_split
            if found.get("test_files") and not found["validation_files"]:
                # Half of what is held out is for test then; see `FileProblem`.
                found["validation_files"] = found.pop("test_files")
        if not found[option]:
            raise ValueError(
                f"options of {self.name}: {option}={directory}: the directory has no file that "
                f"ends in {', '.join(ENDINGS)}"
            )
        for name, pattern in found.items():
            if pattern and (name == option or not self.options.get(name)):
                self.options.set(name, pattern)
                self.given_options[name] = pattern

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the records; a sample has the values that the options name."""
        records = Records(files[0], scratch)
        names = {option: self.options.get(option) for option in self.field_defaults}

        def sample(number: int) -> Sample:
            values = {option: records.value(number, name) for option, name in names.items()}
            if None in values.values():
                raise SkippedSampleError("a value is missing")
            return values

        return Made(len(records), sample)


def find_pattern(directory: Path, words: Sequence[str]) -> str:
    """Returns a pattern for the files of a directory, of one format.

    Args:
        directory: where they are.
        words: names of a split; those files are meant that are in a directory of such a name, at
            any depth, or that have it as their name or at its beginning, as in
            "train-00000.parquet". Without words all are meant.

    Returns:
        "" if there is no such file.
    """
    for file in _IN_DIRECTORIES:
        wanted = [f"**/{word}/**/{file}" for word in words]
        wanted += [f"**/{word}[-.]{file}" for word in words]
        wanted += [f"**/{word}{file.removeprefix('*')}" for word in words if file.startswith("*")]
        for pattern in wanted or [f"**/{file}"]:
            if any(directory.glob(pattern)):
                return str(Path(glob.escape(str(directory))) / pattern)
    return ""


_FILE_OPTIONS = ("files", "validation_files", "test_files")


@registry.register_problem
class LanguagemodelRecords(RecordProblem, LanguageModelProblem):
    """Language modelling on records: --problem_options='files=reviews.jsonl,text=body'.

    Options, besides those of `RecordProblem` and `LanguageModelProblem`:
        text: name of the value that is a document.
    """

    field_defaults = {"text": "text"}
    making_options = (*LanguageModelProblem.making_options, *_FILE_OPTIONS, "text")


@registry.register_problem
class Text2textRecords(RecordProblem, Text2TextProblem):
    """Text to text on records: --problem_options='files=pairs.csv,inputs=en,targets=de'.

    Options, besides those of `RecordProblem` and `Text2TextProblem`:
        inputs, targets: names of the values.
    """

    field_defaults = {"inputs": "inputs", "targets": "targets"}
    making_options = (*Text2TextProblem.making_options, *_FILE_OPTIONS, "inputs", "targets")


@registry.register_problem
class Text2classRecords(RecordProblem, Text2ClassProblem):
    """Text to class on records: --problem_options='files=mails.parquet,inputs=body,targets=spam'.

    The classes are the different values of the targets, in their order.

    Options, besides those of `RecordProblem` and `Text2ClassProblem`:
        inputs: name of the text.
        targets: name of the class: a number, a word, true or false.
    """

    field_defaults = {"inputs": "inputs", "targets": "targets"}
    making_options = (*Text2ClassProblem.making_options, *_FILE_OPTIONS, "inputs", "targets")
    class_names: tuple[str, ...] = ()

    def make_vocabulary(self, folder: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the classes besides the vocabulary."""
        found: set[str] = set()
        for sample in itertools.chain.from_iterable(map(samples, self.splits)):
            found.add(str(sample["targets"]))
            if len(found) > _MAX_CLASSES:  # said now: texts would fill the memory
                raise ValueError(
                    f"{self.name}: the targets {self.options.targets!r} have {len(found)} or more "
                    f"different values, and there may be {_MAX_CLASSES} classes: for texts use "
                    "text2text_records"
                )
        write_text(folder / _CLASSES_FILE, json.dumps(sorted(found, key=_by_number)) + "\n")
        return super().make_vocabulary(folder, samples)

    def encoder(self, folder: Path) -> Callable[[Sample], Stored]:
        """Returns what makes the tokens of a text, and the number of its class."""
        self._read_classes(folder)
        encode = super().encoder(folder)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        return lambda sample: encode(
            {"inputs": sample["inputs"], "label": numbers[str(sample["targets"])]}
        )

    def decoder(self, folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns what makes the text of its tokens, and the number of the class."""
        self._read_classes(folder)
        return super().decoder(folder)

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of tokens of the inputs and the number of classes."""
        self.check_prepared(data_dir)
        self._read_classes(self.folder(data_dir))
        return super().vocab_sizes(data_dir)

    def _read_classes(self, folder: Path) -> None:
        self.class_names = tuple(json.loads((folder / _CLASSES_FILE).read_text(encoding="utf-8")))


def _by_number(name: str) -> tuple[bool, int, str]:
    """Sorts numbers by their size, before words."""
    is_number = name.removeprefix("-").isdecimal()
    return (not is_number, int(name) if is_number else 0, name)
