"""Problems on a user's own files, which options name."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.object_store.mirror import pulled
from t2tp.problems.data.permutation import permute
from t2tp.problems.data.sample import BadSampleError, GeneratedSamples, Sample, Samples
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.prepare.preparable import WrongOptionError
from t2tp.problems.prepare.prepared import datagen_command
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.sources import user_files
from t2tp.problems.text_to_text import Text2TextProblem

# Fraction of all samples for each held-out split, if the user names no files for it.
_HELD_OUT = {"validation": 0.03, "test": 0.03}

# Indices of samples to compute at a time.
_PIECE = 1 << 20

# Lines in a document of a text that is cut into parts, so that several processes can encode it.
_PART_LINES = 10_000


class FileProblem(Problem):
    """Samples from files; a mixin that precedes the problem's family in the list of base classes.

    Attributes:
      file_options: the options that name the files, such as `files`. Options with the prefix
        `validation_` name held-out files. Without held-out files, validation and test each get 3 %
        of the samples, chosen at random. If there are held-out files, options with the prefix
        `test_` name test files. Without test files, test gets half of the held-out samples.
      dataset: a suffix of the problem's name, as in "translate_tsv:news", which distinguishes data
        of the same problem in one `data_dir`; "" for none.

    A file that matches the patterns of several splits belongs only to the last of these splits, in
    the order train, validation, test.
    """

    dataset = ""

    file_options: tuple[str, ...] = ("files",)

    @property
    def _split_options(self) -> dict[str, tuple[str, ...]]:
        """The options that name the files of each split."""
        return {
            split: tuple(f"{prefix}{name}" for name in self.file_options)
            for split, prefix in zip(self.splits, ("", "validation_", "test_"), strict=True)
        }

    @property
    def name(self) -> str:
        """The name of the problem and of the data set, as in "translate_tsv:news"."""
        return f"{super().name}:{self.dataset}" if self.dataset else super().name

    def directory(self, data_dir: AnyPath) -> Path:
        """Returns the directory of the data, different for each data set."""
        directory = super().directory(data_dir)
        if not self.dataset:
            return directory
        return pulled(directory.with_name(f"{directory.name.partition(':')[0]}-{self.dataset}"))

    def default_options(self) -> HParams:
        """Declares the options that name files."""
        options = super().default_options()
        helps = (
            "a path, or a pattern such as texts/**/*.txt",
            "the same, held out for validation and test",
            "the same, for test; validation then gets the others",
        )
        for names, help in zip(self._split_options.values(), helps, strict=True):
            for name in names:
                options.add(name, "", help=help)
        return options

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the samples in `files`, which has a list of files for each of `file_options`.

        The encoding processes share `scratch`, a directory for state such as indexes.
        """
        raise NotImplementedError

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Opens the samples of a split; see `Problem.samples`."""
        train, validation, test = self.splits
        given = self._options_with_files()
        if validation not in given:
            everything = self.read(self._files(self.file_options), tmp_dir)
            return _subset(everything, self._drawn(split, len(everything), tmp_dir))
        if split == train or test in given:
            return self.read(self._files_of(split), tmp_dir)
        # Held-out samples alternate between validation and test.
        both = self.read(self._files_of(validation), tmp_dir)
        if len(both) < 2:
            raise ValueError(self._too_few(len(both), (validation, test)))
        return _subset(both, np.arange([validation, test].index(split), len(both), 2))

    def more_samples(self) -> str:
        """Returns an option that makes more samples from the same files, or ""."""
        return ""

    def _options_with_files(self) -> dict[str, tuple[str, ...]]:
        """Returns the file options of train, and of the held-out splits that have files."""
        train, validation, test = self.splits
        options = self._split_options
        given = {
            split: names
            for split, names in options.items()
            if split == train or any(map(self.options.get, names))
        }
        if test in given and validation not in given:
            missing = " and ".join(options[validation])
            raise WrongOptionError(
                f"{' and '.join(options[test])} without {missing}: give {missing} too"
            )
        return given

    def _drawn(self, split: str, count: int, scratch: Path) -> np.ndarray:
        """Returns the indices of a split's random samples, from a file: int64 [any]."""
        share = self._share(split, count)
        pieces = (share[begin : begin + _PIECE] for begin in range(0, len(share), _PIECE))
        drawn = (permute(np.array(piece), count, "splits") for piece in pieces)
        return user_files.stored(scratch / "splits" / f"{split}-{count}", lambda: drawn)

    def _share(self, split: str, count: int) -> range:
        """Returns a split's part of the numbers up to `count`: validation, test, then train."""
        if count < len(self.splits):
            raise ValueError(self._too_few(count, self.splits))
        sizes = [max(1, round(share * count)) for share in _HELD_OUT.values()]
        edges = [0, *np.cumsum(sizes).tolist(), count]
        number = [*self.splits[1:], self.splits[0]].index(split)
        return range(edges[number], edges[number + 1])

    def _too_few(self, count: int, splits: Sequence[str]) -> str:
        # With files of its own, the second split needs no samples of the first one.
        advice = [f"{' and '.join(self._split_options[splits[1]])} besides"]
        if self.more_samples():
            advice.insert(0, self.more_samples())
        return (
            f"{count} sample{'' if count == 1 else 's'} cannot be shared out among "
            f"{', '.join(splits)}: give {', or '.join(advice)}"
        )

    def _files_of(self, split: str) -> list[list[Path]]:
        """Returns a split's files, without files that a later split also names."""
        names = self._options_with_files()[split]
        files = self._files(names)
        later, taken = self._taken(split)
        rows = _without(files, taken)
        if not rows[0]:
            assignments = " and ".join(f"{name}={self.options.get(name)}" for name in names)
            raise ValueError(
                f"{assignments}: nothing is left for {split}, as all its files are held out by "
                f"{' and '.join(later)}"
            )
        return rows

    def _taken(self, split: str) -> tuple[list[str], set[Path]]:
        """Returns the options of later splits, and the files that they name."""
        later = self.splits[self.splits.index(split) + 1 :]
        options = self._options_with_files()
        names = [name for each in later for name in options.get(each, ())]
        return names, {path.resolve() for path in self._all_files(names)}

    def _report_taken(self) -> None:
        """Warns of files that a split lacks because a later split also names them."""
        for split, names in self._options_with_files().items():
            _, taken = self._taken(split)
            own = self._all_files(names)
            if left_out := [str(path) for path in own if path.resolve() in taken]:
                files = user_files.named(left_out)
                logging.warning(f"{self.name}: left out of {split}, as they are held out: {files}")

    def data_dependencies(self) -> dict[str, Any]:
        """Returns the dependencies, with a fingerprint of the files."""
        files = self._all_files(itertools.chain(*self._options_with_files().values()))
        return {**super().data_dependencies(), "files": user_files.fingerprint(files)}

    def download(self, directory: Path, tmp_dir: Path) -> None:
        """Records the state of the files; see `write_sources`."""
        self._report_taken()
        options = itertools.chain(*self._options_with_files().values())
        user_files.write_sources(directory, map(self.options.get, options))

    def changed_sources(self, directory: Path) -> str:
        """Describes the files and other sources that have changed."""
        changed = (user_files.changed_sources(directory), super().changed_sources(directory))
        return "; ".join(filter(None, changed))

    def _files(self, names: Iterable[str]) -> list[list[Path]]:
        return [user_files.find_files(self.options.get(name), name) for name in names]

    def _all_files(self, names: Iterable[str]) -> list[Path]:
        return [*itertools.chain(*self._files(names))]


def _without(files: list[list[Path]], taken: set[Path]) -> list[list[Path]]:
    """Removes files; parallel files, such as inputs and targets, are removed together."""
    if len({len(paths) for paths in files}) > 1:  # `read` raises an error for unequal numbers.
        return files
    rows = [row for row in zip(*files, strict=True) if not any(p.resolve() in taken for p in row)]
    return [[row[index] for row in rows] for index in range(len(files))]


def _subset(samples: Samples, numbers: np.ndarray) -> Samples:
    return GeneratedSamples(len(numbers), lambda number: samples[int(numbers[number])])


@registry.register_problem
class LanguagemodelTextfiles(FileProblem, LanguageModelProblem):
    """Language modelling on a user's text files: --problem_options='files=texts/**/*.txt'.

    Options, with the options of `LanguageModelProblem`:
        files, validation_files, test_files: a path or pattern; see `FileProblem`.
        documents: whether each file ("files"), each paragraph ("paragraphs", which blank lines
            separate) or each line ("lines") is a document. With fewer than three files and no
            held-out files, each split has a contiguous part of the text, cut at lines.
    """

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        units = ("files", "paragraphs", "lines")
        options.add("documents", "files", help="unit of a document", choices=units)
        return options

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the documents."""
        (paths,) = files
        documents = self.options.documents
        if documents == "files":
            return GeneratedSamples(
                len(paths), lambda number: {"text": user_files.read_file(paths[number])}
            )
        kinds = {"paragraphs": user_files.Paragraphs, "lines": user_files.LineRange}
        texts = kinds[documents](paths, scratch)
        return GeneratedSamples(len(texts), lambda number: {"text": texts[number]})

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Opens a split's documents; cuts the text of one or two files into contiguous parts."""
        whole = self.options.documents == "files" and len(self._options_with_files()) == 1
        (paths,) = self._files(self.file_options) if whole else ([],)
        if not 0 < len(paths) < len(self.splits):
            return super().samples(split, directory, tmp_dir)
        lines = user_files.LineRange(paths, tmp_dir)
        share = self._share(split, len(lines))
        parts = [share[first : first + _PART_LINES] for first in range(0, len(share), _PART_LINES)]
        return GeneratedSamples(
            len(parts), lambda number: {"text": "\n".join(lines[n] for n in parts[number])}
        )

    def download(self, directory: Path, tmp_dir: Path) -> None:
        """Records the state of the files, and warns if they contain JSON lines."""
        super().download(directory, tmp_dir)
        (files,) = self._files(self.file_options)
        if names := user_files.json_names(files[0]):
            field = "text" if "text" in names else names[0]
            options = {"files": self.options.files, "text": field}
            command = datagen_command(
                "languagemodel_records", "", directory.parent, directory, {}, options
            )
            logging.warning(
                f"{files[0]} holds JSON lines: their keys, quotes and escapes will be learned as"
                f" text. To learn the value {field!r} of each line:\n  {command}"
            )

    def more_samples(self) -> str:
        """Returns the option that makes smaller documents, if not yet set."""
        return "" if self.options.documents == "lines" else "documents=lines"


@registry.register_problem
class TranslateTsv(FileProblem, Text2TextProblem):
    """Text to text on a user's files of two columns: --problem_options='files=pairs/*.tsv'.

    A line has the inputs, a tab, and the targets. A line with an empty column is skipped and
    counted.

    Options, with the options of `Text2TextProblem`:
        files, validation_files, test_files: a path or pattern; see `FileProblem`.
    """

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the pairs."""
        lines = user_files.LineRange(files[0], scratch)

        def sample(number: int) -> Sample:
            columns = lines[number].split("\t")
            if len(columns) != 2:
                raise BadSampleError(
                    f"{lines.location(number)}: {len(columns)} columns, and there must be 2, with "
                    "a tab between them"
                )
            return {"inputs": columns[0], "targets": columns[1]}

        return GeneratedSamples(len(lines), sample)


@registry.register_problem
class TranslateTextfiles(FileProblem, Text2TextProblem):
    """Text to text on a user's parallel files: --problem_options='inputs=a.en,targets=a.de'.

    Line n of the files in `targets` belongs to line n of the files in `inputs`. A pair with an
    empty line is skipped and counted.

    Options, with the options of `Text2TextProblem`:
        inputs, targets: paths or patterns; see `FileProblem`.
        validation_inputs, validation_targets, test_inputs, test_targets: see `FileProblem`.
    """

    file_options = ("inputs", "targets")

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the pairs."""
        if len(files[0]) != len(files[1]):
            raise ValueError(
                f"{len(files[0])} files of inputs and {len(files[1])} of targets: give equal "
                "numbers"
            )
        for pair in zip(*files, strict=True):
            counts = [len(user_files.LineRange([path], scratch)) for path in pair]
            if counts[0] != counts[1]:
                raise ValueError(
                    f"{pair[0]} has {counts[0]} lines and {pair[1]} has {counts[1]}: line n of one "
                    "must belong to line n of the other"
                )
        inputs, targets = (user_files.LineRange(paths, scratch) for paths in files)
        return GeneratedSamples(
            len(inputs), lambda number: {"inputs": inputs[number], "targets": targets[number]}
        )
