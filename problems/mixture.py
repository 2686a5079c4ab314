"""`mixture:a=0.7,b=0.3`: several problems at once, in exact shares.

A stage of the schedule has a share of rows for each problem. Shares are brought to whole numbers
p_1, p_2, ... without a common divisor; of every block of p_1 + p_2 + ... rows exactly p_i are of
problem i, in an order drawn for the block. So the place of any row in its problem's own stream
follows from the row's number: nothing is stored to resume, and the shares hold exactly over every
whole block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t2tp.hparam import HParams
from t2tp.problems.generation import Sample, Samples, Stored
from t2tp.problems.manifest import Manifest
from t2tp.problems.permutation import permute
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.stream import (
    EMPTY,
    Batch,
    ExampleSource,
    FeatureSpec,
    Stream,
    batch_shapes,
    checked_step,
    shuffled,
)

PREFIX = "mixture:"

# The largest number of rows in a block; shares of more digits are not needed.
_LARGEST_BLOCK = 10_000


class Stage(NamedTuple):
    """Shares from a step on.

    Attributes:
        step: the first.
        parts: whole numbers, one for each problem: rows in a block.
    """

    step: int
    parts: tuple[int, ...]


class Mixture(Problem):
    """Problems whose batches have the same features, mixed row by row.

    Evaluated are all examples of all of them; to see how well one does, evaluate on it alone.
    """

    def __init__(self, name: str, problems: Sequence[Problem], schedule: Sequence[Stage]):
        """Takes what is mixed; see `parse`."""
        super().__init__()
        self._name = name
        self._problems = list(problems)
        self._schedule = list(schedule)
        common = [split for split in self._problems[0].splits if self._all_have(split)]
        self.splits = tuple(common)
        self.metric_names = tuple(
            metric
            for metric in self._problems[0].metric_names
            if all(metric in problem.metric_names for problem in self._problems)
        )

    def _all_have(self, split: str) -> bool:
        return all(split in problem.splits for problem in self._problems)

    @property
    def name(self) -> str:
        """What the user typed."""
        return self._name

    def folder(self, data_dir: AnyPath) -> Path:
        """Returns where the first problem's data lie; a mixture has none of its own."""
        return self._problems[0].folder(data_dir)

    def default_options(self) -> HParams:
        """A mixture has no options; its problems have their own."""
        return HParams()

    def prepare(
        self,
        data_dir: AnyPath,
        tmp_dir: AnyPath | None = None,
        overwrite: bool = False,
        num_shards: int | None = None,
        num_workers: int = 1,
    ) -> Manifest:
        """Makes the data of all its problems; see `Problem.prepare`. Returns the first's."""
        for problem in self._problems:
            problem.prepare(data_dir, tmp_dir, overwrite, num_shards, num_workers)
        return self.check_prepared(data_dir)

    def digest(self, data_dir: AnyPath) -> str:
        """Returns what tells the data of its problems from others."""
        digests = [problem.digest(data_dir) for problem in self._problems]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def check_prepared(self, data_dir: AnyPath) -> Manifest:
        """Checks the data of all its problems, and that they have the same vocabulary.

        Raises:
            FileNotFoundError, ValueError: as `Problem.check_prepared`, or they cannot be mixed.
        """
        manifests = [problem.check_prepared(data_dir) for problem in self._problems]
        sizes = [problem.vocab_sizes(data_dir) for problem in self._problems]
        first = self._problems[0]
        for problem, manifest, size in zip(self._problems, manifests, sizes, strict=True):
            if manifest.vocabulary != manifests[0].vocabulary or size != sizes[0]:
                raise ValueError(
                    f"{first.name} and {problem.name} cannot be mixed, as their vocabularies are "
                    f"not the same: make the data of {problem.name} again with "
                    f"--problem_options=vocabulary_from={first.folder(data_dir)} --overwrite"
                )
        return manifests[0]

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the sizes that all have."""
        return self._problems[0].vocab_sizes(data_dir)

    def features(self, batch_size: int, length: int) -> dict[str, FeatureSpec]:
        """Returns the features that all have.

        Raises:
            ValueError: theirs are not the same.
        """
        first = self._problems[0].features(batch_size, length)
        for problem in self._problems[1:]:
            if problem.features(batch_size, length) != first:
                raise ValueError(
                    f"{self._problems[0].name} and {problem.name} cannot be mixed, as their "
                    "batches do not have the same features"
                )
        return first

    def examples(self, data_dir: AnyPath, split: str, length: int) -> ConcatenatedSource:
        """Returns the examples of all problems, those of the first first."""
        self.features(1, length)
        return ConcatenatedSource(
            [problem.examples(data_dir, split, length) for problem in self._problems]
        )

    def train_stream(self, data_dir: AnyPath, batch_size: int, length: int, seed: int) -> Stream:
        """Returns the mixed batches; those of each problem are padded."""
        source = self.examples(data_dir, self.splits[0], length)
        return MixtureStream(source, self._schedule, batch_size, seed)

    def counts(self, batch: Batch) -> dict[str, float]:
        """Adds up what each problem counts in its rows."""
        assert isinstance(batch.source, ConcatenatedSource)  # as `examples` made it
        sums: dict[str, float] = {}
        for problem, part in zip(self._problems, batch.source.parts(batch), strict=True):
            for name, count in problem.counts(part).items():
                sums[name] = sums.get(name, 0.0) + count
        return sums

    def change_hparams(self, hparams: HParams) -> None:
        """Sets what suits the first problem."""
        self._problems[0].change_hparams(hparams)

    def samples(self, split: str, folder: Path, tmp_dir: Path) -> Samples:
        """A mixture has no samples of its own."""
        raise NotImplementedError(f"{self.name} has no samples: its problems have")

    def columns(self, folder: Path) -> dict[str, np.dtype]:
        """Those of the first problem."""
        return self._problems[0].columns(folder)

    def encoder(self, folder: Path) -> Callable[[Sample], Stored]:
        """That of the first problem."""
        return self._problems[0].encoder(folder)

    def decoder(self, folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """That of the first problem."""
        return self._problems[0].decoder(folder)

    def datagen_command(self, data_dir: AnyPath) -> str:
        """Returns the commands that make the data."""
        return "\n  ".join(problem.datagen_command(data_dir) for problem in self._problems)


class ConcatenatedSource:
    """The examples of several sources, numbered through; an `ExampleSource`."""

    def __init__(self, sources: Sequence[ExampleSource]):
        self.sources = sources
        self.features = sources[0].features
        self.first = np.concatenate([[0], np.cumsum([len(source) for source in sources])])
        for source in sources[1:]:
            for name in self.features:
                if source.shape(name) != sources[0].shape(name):
                    raise ValueError(
                        f"the feature {name} has shape {source.shape(name)} in one problem and "
                        f"{sources[0].shape(name)} in another: they cannot be mixed"
                    )

    def __len__(self) -> int:
        return int(self.first[-1])

    def shape(self, feature: str) -> tuple[int, ...]:
        """Returns the sizes of the feature's dimensions without "batch"."""
        return self.sources[0].shape(feature)

    def read(self, feature: str, examples: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads a feature of some examples; see `ExampleSource.read`."""
        # Rows without an example are read from the first source.
        which = np.maximum(np.searchsorted(self.first, examples, side="right") - 1, 0)
        values = None
        for number in np.unique(which).tolist():
            rows = which == number
            inside = np.where(examples == EMPTY, EMPTY, examples - self.first[number])
            read = self.sources[number].read(feature, inside[rows], parts)
            if values is None:
                values = np.empty((len(examples), *read.shape[1:]), read.dtype)
            values[rows] = read
        if values is None:  # no rows are asked for
            return self.sources[0].read(feature, examples, parts)
        return values

    def parts(self, batch: Batch) -> Iterable[Batch]:
        """Gives the rows of each source as a batch of it."""
        for number, source in enumerate(self.sources):
            inside = batch.examples - self.first[number]
            yield Batch(source, inside[(inside >= 0) & (inside < len(source))])


class MixtureStream:
    """Batches without end in which every problem has its share of the rows."""

    def __init__(
        self, source: ConcatenatedSource, schedule: Sequence[Stage], batch_size: int, seed: int
    ):
        self._source = source
        self._schedule = schedule
        self._batch_size = batch_size
        self._seed = seed
        # [stages, problems]: how many rows of each problem there were before each stage.
        self._before = np.zeros((len(schedule), len(source.sources)), np.int64)
        for number in range(1, len(schedule)):
            steps = schedule[number].step - schedule[number - 1].step
            self._before[number] = self._before[number - 1] + self._rows_of(
                number - 1, steps * batch_size
            )

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of this step, counted from 0."""
        step = checked_step(step)
        stage = max(n for n, each in enumerate(self._schedule) if each.step <= step)
        parts = np.array(self._schedule[stage].parts)
        since = (step - self._schedule[stage].step) * self._batch_size
        rows = since + np.arange(self._batch_size)
        problem, rank = self._drawn(stage, rows)
        edges = np.cumsum(parts) - parts
        place = (
            self._before[stage][problem]
            + rows // parts.sum() * parts[problem]
            + rank
            - edges[problem]
        )
        examples = np.empty(self._batch_size, np.int64)
        for number, source in enumerate(self._source.sources):
            here = problem == number
            if here.any():
                own = shuffled(place[here], len(source), "epoch", self._seed)
                examples[here] = own + self._source.first[number]
        return Batch(self._source, examples)

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes of the one kind of batch."""
        return [batch_shapes(self._source, self._batch_size)]

    def _drawn(self, stage: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the problem of each row of a stage, and the row's rank in its block."""
        parts = np.array(self._schedule[stage].parts)
        size = int(parts.sum())
        blocks = rows // size
        rank = np.empty(rows.shape, np.int64)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            rank[here] = permute(rows[here] % size, size, "mixture", self._seed, stage, block)
        return np.searchsorted(np.cumsum(parts), rank, side="right"), rank

    def _rows_of(self, stage: int, rows: int) -> np.ndarray:
        """Returns how many of the first rows of a stage each problem has: int64 [problems]."""
        parts = np.array(self._schedule[stage].parts)
        whole, rest = divmod(rows, int(parts.sum()))
        problem, _ = self._drawn(stage, whole * int(parts.sum()) + np.arange(rest))
        return whole * parts + np.bincount(problem, minlength=len(parts))


def parse(name: str, find: Callable[[str], Problem]) -> Mixture:
    """Makes a mixture of its name.

    "mixture:a=0.7,b=0.3" has seven rows of a to three of b; "mixture:a=1,b=0;1000:a=1,b=1" only
    those of a, and from step 1000 on as many of both.

    Args:
        name: "mixture:" and the shares, with stages between ";".
        find: name -> problem.

    Raises:
        ValueError: it cannot be read; says what is wrong.
    """
    stages = []
    for number, text in enumerate(name.removeprefix(PREFIX).split(";")):
        step, colon, shares = text.partition(":")
        if not number:
            stages.append((0, _shares(text, name)))
        elif colon and step.isdigit() and int(step) > stages[-1][0]:
            stages.append((int(step), _shares(shares, name)))
        else:
            raise ValueError(
                f"{name}: {text!r} is no stage; after the first they begin with their step, each "
                "later than the one before, as in mixture:a=1,b=0;1000:a=1,b=1"
            )
    names = list(dict.fromkeys(each for _, shares in stages for each in shares))
    schedule = [
        Stage(step, _whole([shares.get(each, Fraction(0)) for each in names], name))
        for step, shares in stages
    ]
    return Mixture(name, [find(each) for each in names], schedule)


def _shares(text: str, name: str) -> dict[str, Fraction]:
    shares: dict[str, Fraction] = {}
    for part in text.split(","):
        problem, equals, share = part.rpartition("=")
        try:
            value = Fraction(share.strip())
        except (ValueError, ZeroDivisionError):
            value = Fraction(-1)
        if not (equals and problem.strip()) or value < 0 or problem.strip() in shares:
            raise ValueError(
                f"{name}: {part!r} is no share; they are written as in mixture:a=0.7,b=0.3, each "
                "problem once"
            )
        shares[problem.strip()] = value
    return shares


def _whole(shares: Sequence[Fraction], name: str) -> tuple[int, ...]:
    """Returns the smallest whole numbers in the same proportion."""
    scale = math.lcm(*(share.denominator for share in shares))
    parts = [int(share * scale) for share in shares]
    divisor = math.gcd(*parts)
    if not divisor:
        raise ValueError(f"{name}: all shares of a stage are 0")
    parts = [part // divisor for part in parts]
    if sum(parts) > _LARGEST_BLOCK:
        raise ValueError(
            f"{name}: these shares hold exactly only over {sum(parts)} rows; round them, so that "
            f"it is at most {_LARGEST_BLOCK}"
        )
    return tuple(parts)
