"""The batches of a mixture: rows of several sources, in exact proportions.

A mixture's schedule is a list of stages. A stage sets the problems' proportions from a step on, as
integers p_1, p_2, ... without a common divisor. Every block of p_1 + p_2 + ... rows has exactly p_i
rows from problem i, in an order that is sampled for the block. So a row's index in the mixture
determines its problem and its position in the problem's own stream. Resuming needs no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from t2tp.problems.data import batch_stream
from t2tp.problems.data.batch_sizes import BatchSizes
from t2tp.problems.data.permutation import permute


class Stage(NamedTuple):
    """The proportions of a mixture from a step on.

    Attributes:
      step: the first step with these proportions.
      parts: number of rows of each problem in a block.
    """

    step: int
    parts: tuple[int, ...]


class ConcatenatedSource:
    """The concatenated examples of several sources; an `ExampleSource`."""

    def __init__(self, sources: Sequence[batch_stream.ExampleSource]):
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
        """Reads a feature of examples; see `ExampleSource.read`."""
        # The first source also reads the empty rows.
        source_index = np.maximum(np.searchsorted(self.first, examples, side="right") - 1, 0)
        nothing = self.sources[0].read(feature, examples[:0], parts)
        values = np.empty((len(examples), *nothing.shape[1:]), nothing.dtype)
        for number in np.unique(source_index).tolist():
            rows = source_index == number
            inside = np.where(
                examples == batch_stream.EMPTY, batch_stream.EMPTY, examples - self.first[number]
            )
            values[rows] = self.sources[number].read(feature, inside[rows], parts)
        return values

    def parts(self, batch: batch_stream.Batch) -> Iterable[batch_stream.Batch]:
        """Yields each source's rows of a batch, as a batch of the source."""
        for number, source in enumerate(self.sources):
            inside = batch.examples - self.first[number]
            yield batch_stream.Batch(source, inside[(inside >= 0) & (inside < len(source))])


class MixtureStream:
    """An endless stream in which every problem has its proportion of the rows."""

    def __init__(
        self,
        source: ConcatenatedSource,
        schedule: Sequence[Stage],
        batch_size: int | BatchSizes,
        seed: int,
    ):
        """Sets the rows and the schedule of the mixture."""
        self._source = source
        self._schedule = schedule
        self._seed = seed
        self.batch_sizes = BatchSizes.of(batch_size)
        # [stages]: number of rows of each problem in a block; the first row of each stage.
        self._parts = [np.array(stage.parts) for stage in schedule]
        self._first = [self.batch_sizes.rows_before(stage.step) for stage in schedule]
        # [stages, problems]: number of rows of each problem before each stage.
        self._before = np.zeros((len(schedule), len(source.sources)), np.int64)
        for number in range(1, len(schedule)):
            rows = self._first[number] - self._first[number - 1]
            self._before[number] = self._before[number - 1] + self._rows_of(number - 1, rows)

    def with_batch_sizes(self, batch_sizes: BatchSizes) -> MixtureStream:
        """Returns the same rows of each problem in batches of these sizes."""
        return MixtureStream(self._source, self._schedule, batch_sizes, self._seed)

    def __getitem__(self, step: int) -> batch_stream.Batch:
        """Returns the batch of this step, counted from 0."""
        step = batch_stream.checked_step(step)
        stage = max(n for n, each in enumerate(self._schedule) if each.step <= step)
        batch_size = self.batch_sizes.at(step)
        since = self.batch_sizes.rows_before(step) - self._first[stage]
        problem, before = self._sampled(stage, since + np.arange(batch_size))
        positions = self._before[stage][problem] + before
        examples = np.empty(batch_size, np.int64)
        for number, source in enumerate(self._source.sources):
            is_chosen = problem == number
            if is_chosen.any():
                # Without separate keys, problems of the same size would have the same order.
                key = ("epoch", self._seed, number)
                own_examples = batch_stream.shuffled(positions[is_chosen], len(source), *key)
                examples[is_chosen] = own_examples + self._source.first[number]
        return batch_stream.Batch(self._source, examples)

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes of a batch."""
        return [batch_stream.batch_shapes(self._source, self.batch_sizes.last)]

    def _sampled(self, stage: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns each row's problem, and how many earlier rows of the stage have this problem."""
        parts = self._parts[stage]
        size = int(parts.sum())
        blocks, inside = np.divmod(rows, size)
        problem, before = np.empty_like(rows), np.empty_like(rows)
        for block in np.unique(blocks).tolist():
            in_block = blocks == block
            of_block, before_in_block = self._block(stage, block)
            problem[in_block] = of_block[inside[in_block]]
            before[in_block] = before_in_block[inside[in_block]]
        return problem, before + blocks * parts[problem]

    def _block(self, stage: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns each row's problem, and how many earlier rows of the block have this problem."""
        parts = self._parts[stage]
        size = int(parts.sum())
        rank = permute(np.arange(size), size, "mixture", self._seed, stage, block)
        edges = np.cumsum(parts)
        problem = np.searchsorted(edges, rank, side="right")
        # A problem's rows are numbered in their order of appearance in the block. So a stage that
        # ends inside a block has used the problem's first rows, and the next stage continues after
        # these rows.
        before = np.empty_like(rank)
        before[np.argsort(problem, kind="stable")] = np.concatenate([np.arange(n) for n in parts])
        return problem, before

    def _rows_of(self, stage: int, rows: int) -> np.ndarray:
        """Counts the rows of each problem among the first `rows` of a stage: int64 [problems]."""
        parts = self._parts[stage]
        num_blocks, rest = divmod(rows, int(parts.sum()))
        problem, _ = self._block(stage, num_blocks)
        return num_blocks * parts + np.bincount(problem[:rest], minlength=len(parts))
