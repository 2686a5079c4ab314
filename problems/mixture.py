"""`mixture:a=0.7,b=0.3`: several problems at once, in exact shares; `mixture:a,b`: by their sizes.

Problems whose vocabularies are trained need one for all of them, so the mixture then has data of
its own, with the problems' in folders inside; other mixtures use the data that their problems have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from t2tp.hparam import HParams
from t2tp.hparam_types import split_at_commas
from t2tp.problems import making, manifest
from t2tp.problems.columns import open_columns
from t2tp.problems.generation import GenerationSettings, Sample, Samples, Stored
from t2tp.problems.manifest import Manifest
from t2tp.problems.mixture_name import find_parts, proportional_parts, read_name
from t2tp.problems.mixture_stream import ConcatenatedSource, MixtureStream, Stage
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.shared_vocabulary import agree, make_shared_vocabulary, sharing
from t2tp.problems.stream import Batch, FeatureSpec, Stream
from t2tp.problems.text import TextProblem

# A folder's name is cut where it has more characters.
_LONGEST_FOLDER = 120

# Options of a mixture that are not its problems'.
_OPTIONS = ("temperature", "max_rows")


class Mixture(Problem):
    """Problems whose batches have the same features, mixed row by row.

    Evaluated are all examples of all of them; to see how well one does, evaluate on it alone.

    Options, where the name has no shares; see `mixture_name.proportional_parts`:
        temperature: of the proportions.
        max_rows: what more rows than that of a problem count as; 0: no limit.

    Attributes:
        parts: the problems.
    """

    def __init__(
        self, name: str, parts: Sequence[Problem], schedule: Sequence[Stage], options: str = ""
    ):
        """Takes what is mixed; see `find_mixture`.

        Raises:
            ValueError: their vocabularies cannot be one, or an option cannot be.
        """
        self._name = name
        super().__init__(options)
        if self.given_options and schedule:
            raise ValueError(
                f"options of {name}: {' and '.join(self.given_options)} makes shares of the "
                "problems' sizes, and the name has shares: leave one of them out"
            )
        if self.options.temperature <= 0 or self.options.max_rows < 0:
            raise ValueError(
                f"options of {name}: temperature must be more than 0 and max_rows at least 0, "
                f"given temperature={self.options.temperature:g},max_rows={self.options.max_rows}"
            )
        self.parts = list(parts)
        self._schedule = list(schedule)
        self._sharing = sharing(parts)
        if self._sharing:
            agree(name, self._sharing)
            for part in parts:
                part.warns_of_changes = False  # the mixture does, as it is what can be made again
        self.given_options |= self._dotted(lambda part: part.given_options)
        self.splits = tuple(self._common(lambda part: part.splits))
        self.metric_names = tuple(self._common(lambda part: part.metric_names))
        self.decode_metric_names = tuple(self._common(lambda part: part.decode_metric_names))

    def _common(self, names: Callable[[Problem], Sequence[str]]) -> list[str]:
        first, *others = self.parts
        return [each for each in names(first) if all(each in names(other) for other in others)]

    def _dotted(self, values: Callable[[Problem], Mapping[str, Any]]) -> dict[str, Any]:
        return {f"{p.name}.{name}": value for p in self.parts for name, value in values(p).items()}

    def default_options(self) -> HParams:
        """Declares the mixture's own options."""
        options = super().default_options()
        options.add("temperature", 1.0, help="of the proportions, where the name has no shares")
        options.add("max_rows", 0, help="what more rows of a problem count as; 0: no limit")
        return options

    def use_data_order(self, version: int) -> None:
        """Takes the examples in the order of a run, and says what is wrong with an old one."""
        super().use_data_order(version)
        for part in self.parts:
            part.use_data_order(version)
        if version == 1:
            logging.warning(
                "this run of %s was started with an earlier version of t2tp, and keeps its order: "
                "problems of the same size are shuffled alike, and a change of stages may repeat "
                "some rows; runs that start now do not have these faults",
                self.name,
            )

    @property
    def name(self) -> str:
        """What the user typed."""
        return self._name

    def folder(self, data_dir: AnyPath) -> Path:
        """Returns where the mixture's own data lie, or, without any, the first problem's."""
        if not self._sharing:
            return self.parts[0].folder(data_dir)
        names = dict.fromkeys(part.folder(data_dir).name for part in self.parts)
        name = f"mixture_{'+'.join(names)}"
        if len(name) > _LONGEST_FOLDER:
            name = f"{name[:_LONGEST_FOLDER]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return Path(data_dir) / name

    def parts_dir(self, data_dir: AnyPath) -> AnyPath:
        """Returns what is the `data_dir` of the problems."""
        return self.folder(data_dir) if self._sharing else data_dir

    def made_with(self) -> dict[str, Any]:
        """Returns the options of all problems, as in "b.documents"."""
        return self._dotted(lambda part: part.made_with())

    def default_made_with(self) -> dict[str, Any]:
        """Returns the same options with their defaults."""
        return self._dotted(lambda part: part.default_made_with())

    def prepare(
        self,
        data_dir: AnyPath,
        tmp_dir: AnyPath | None = None,
        overwrite: bool = False,
        num_shards: int | None = None,
        num_workers: int | None = 1,
        max_bad_samples: int | None = None,
    ) -> Manifest:
        """Makes the mixture's data, or those of all its problems; see `Problem.prepare`."""
        arguments = (data_dir, tmp_dir, overwrite, num_shards, num_workers, max_bad_samples)
        if self._sharing:
            return super().prepare(*arguments)
        for part in self.parts:
            part.prepare(*arguments)
        return self.check_prepared(data_dir)

    def plan(self) -> dict[str, Any]:
        """Says what the problems' data depend on, and the shares that make the vocabulary."""
        return {"shares": self._shares_rule(), **self._dotted(lambda part: part.plan())}

    def make(self, folder: Path, scratch: Path, settings: GenerationSettings) -> dict[str, Any]:
        """Makes one vocabulary, and with it the data of each problem; see `Problem.make`."""
        homes: dict[Path, TextProblem] = {part.folder(folder): part for part in self._sharing}
        for home, part in homes.items():
            home.mkdir(exist_ok=True)
            part.download(home, scratch)
        vocabulary = make_shared_vocabulary(
            [(part, part.folder(folder)) for part in self._sharing],
            self._shares,
            folder,
            scratch,
            settings,
        )
        made = {}
        for home, part in homes.items():
            manifest.write_options(home, part.made_with())
            made[part.name] = part.make(home, scratch, settings)
            making.describe(home, **made[part.name])
        splits = {s: [each["splits"][s] for each in made.values()] for s in self.splits}
        origins = {name: each["origin"] for name, each in made.items()}
        stored = {
            split: [
                open_columns(home, split, each["splits"][split].shards, each["columns"])
                for home, each in zip(homes, made.values(), strict=True)
            ]
            for split in self.splits
        }
        return {
            "problem": self.name,
            "options": self.made_with(),
            "origin": {"shares": self._shares_rule(), **origins},
            "columns": self.columns(self.parts[0].folder(folder)),
            "splits": {split: sum(rest, first) for split, (first, *rest) in splits.items()},
            "overlaps": making.report_overlaps(self.name, stored),
            "vocabulary": vocabulary,
            "known": {},
        }

    def _shares(self, rows: Sequence[int]) -> list[float]:
        """Returns the problems' shares, the mean of those of all stages, by their sizes."""
        parts = np.array([stage.parts for stage in self._stages(rows)], float)
        return (parts / parts.sum(1, keepdims=True)).mean(0).round(6).tolist()

    def _stages(self, rows: Sequence[int]) -> list[Stage]:
        """Returns the schedule, for problems of so many training rows."""
        temperature, max_rows = self.options.temperature, self.options.max_rows
        return self._schedule or [Stage(0, proportional_parts(rows, temperature, max_rows))]

    def _shares_rule(self) -> Any:
        """Returns what the shares of the vocabulary's texts follow from, as JSON."""
        return self._shares([]) if self._schedule else self.options.values()

    def changed_sources(self, folder: Path) -> str:
        """Says what of its problems' sources has changed, and the shares of the vocabulary."""
        homes = {part.folder(folder): part for part in self._sharing}
        changed = [f"{part.name}, {part.changed_sources(home)}" for home, part in homes.items()]
        found = [each for each in changed if not each.endswith(", ")]
        if self._sharing and not self._sharing[0].options.vocabulary_from:
            before = Manifest.read(folder).origin["shares"]
            if before != self._shares_rule():
                found.append(f"the shares of their vocabulary's texts, which were {before}")
        return "; ".join(found)

    def digest(self, data_dir: AnyPath) -> str:
        """Returns what tells the data of its problems from others."""
        self.check_prepared(data_dir)
        digests = [part.digest(self.parts_dir(data_dir)) for part in self.parts]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def check_prepared(self, data_dir: AnyPath) -> Manifest:
        """Checks the data of all its problems, and that they have the same vocabulary.

        Raises:
            FileNotFoundError, ValueError: as `Problem.check_prepared`, or they cannot be mixed.
        """
        own = super().check_prepared(data_dir) if self._sharing else None
        inside = self.parts_dir(data_dir)
        manifests = [part.check_prepared(inside) for part in self.parts]
        sizes = [part.vocab_sizes(inside) for part in self.parts]
        for part, made, size in zip(self.parts, manifests, sizes, strict=True):
            if made.vocabulary != manifests[0].vocabulary or size != sizes[0]:
                raise ValueError(
                    f"{self.parts[0].name} and {part.name} cannot be mixed, as their symbols are "
                    f"not the same: one has {sizes[0]['targets']}, the other {size['targets']}"
                )
        return own or manifests[0]

    def check_contents(self, data_dir: AnyPath, num_workers: int = 1) -> Manifest:
        """Checks every byte of the data of all its problems; see `Problem.check_contents`."""
        for part in self.parts:
            part.check_contents(self.parts_dir(data_dir), num_workers)
        return self.check_prepared(data_dir)

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the sizes that all have."""
        self.check_prepared(data_dir)
        return self.parts[0].vocab_sizes(self.parts_dir(data_dir))

    def features(self, batch_size: int, length: int) -> dict[str, FeatureSpec]:
        """Returns the features that all have.

        Raises:
            ValueError: theirs are not the same.
        """
        first = self.parts[0].features(batch_size, length)
        for part in self.parts[1:]:
            if part.features(batch_size, length) != first:
                raise ValueError(
                    f"{self.parts[0].name} and {part.name} cannot be mixed, as their batches do "
                    "not have the same features"
                )
        return first

    def examples(self, data_dir: AnyPath, split: str, length: int) -> ConcatenatedSource:
        """Returns the examples of all problems, those of the first first."""
        self.features(1, length)
        inside = self.parts_dir(data_dir)
        return ConcatenatedSource([part.examples(inside, split, length) for part in self.parts])

    def train_examples(self, data_dir: AnyPath, length: int) -> ConcatenatedSource:
        """Returns the rows that all problems are trained on."""
        self.features(1, length)
        inside = self.parts_dir(data_dir)
        return ConcatenatedSource([part.train_examples(inside, length) for part in self.parts])

    def train_stream(self, data_dir: AnyPath, batch_size: int, length: int, seed: int) -> Stream:
        """Returns the mixed batches."""
        source = self.train_examples(data_dir, length)
        stages = self._stages([len(each) for each in source.sources])
        return MixtureStream(source, stages, batch_size, seed, self.data_order)

    def counts(self, batch: Batch) -> dict[str, float]:
        """Adds up what each problem counts in its rows."""
        assert isinstance(batch.source, ConcatenatedSource)  # as `examples` made it
        sums: dict[str, float] = {}
        for part, rows in zip(self.parts, batch.source.parts(batch), strict=True):
            for name, count in part.counts(rows).items():
                sums[name] = sums.get(name, 0.0) + count
        return sums

    def change_hparams(self, hparams: HParams) -> None:
        """Sets what suits the first problem."""
        self.parts[0].change_hparams(hparams)

    def samples(self, split: str, folder: Path, tmp_dir: Path) -> Samples:
        """A mixture has no samples of its own."""
        raise NotImplementedError(f"{self.name} has no samples: its problems have")

    def columns(self, folder: Path) -> dict[str, np.dtype]:
        """Those of the first problem."""
        return self.parts[0].columns(folder)

    def encoder(self, folder: Path) -> Callable[[Sample], Stored]:
        """That of the first problem."""
        return self.parts[0].encoder(folder)

    def decoder(self, folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """That of the first problem."""
        return self.parts[0].decoder(folder)

    def decode_example(self, data_dir: AnyPath, split: str, number: int) -> dict[str, Any]:
        """Returns a sample; the problems' are counted through. See `Problem.decode_example`."""
        self.check_split(split)
        inside, before = self.parts_dir(data_dir), 0
        for part in self.parts:
            count = Manifest.read(part.folder(inside)).splits[split].examples
            if before <= number < before + count:
                return part.decode_example(inside, split, number - before)
            before += count
        raise IndexError(f"example {number} asked for, {split} of {self.name} has {before}")

    def datagen_command(self, data_dir: AnyPath) -> str:
        """Returns the command that makes the data, or those that make the problems'."""
        if self._sharing:
            return super().datagen_command(data_dir)
        return "\n  ".join(part.datagen_command(data_dir) for part in self.parts)


def find_mixture(name: str, options: str, find: Callable[[str, str], Problem]) -> Mixture:
    """Makes a mixture of its name and options.

    Args:
        name: see `mixture_name.read_name`.
        options: the mixture's own, and its problems'; see `mixture_name.find_parts`.
        find: name and options -> problem.

    Raises:
        ValueError: it cannot be read, or the problems cannot be mixed; says what is wrong.
    """
    names, schedule = read_name(name)
    pieces = split_at_commas(options) if options.strip() else []
    is_own = [each.partition("=")[0].strip() in _OPTIONS for each in pieces]
    own, others = (
        ",".join(each for each, own in zip(pieces, is_own, strict=True) if own == wanted)
        for wanted in (True, False)
    )
    return Mixture(name, find_parts(name, names, others, find), schedule, own)
