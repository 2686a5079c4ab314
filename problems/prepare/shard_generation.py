"""Writes the missing shards of a problem's splits, several at a time.

The samples of a split have a fixed shuffled order, and each shard is a contiguous range of this
order. So any number of processes can make the shards in any order, with the same result. In a
source, samples next to each other are often similar. After shuffling, every shard and batch is
representative.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from t2tp.atomic_file import remove_unfinished
from t2tp.problems.data.manifest import BAD, FileState, SplitSizes
from t2tp.problems.data.progress import ProgressBar
from t2tp.problems.data.sample import (
    NOT_THE_SAMPLES_FAULT,
    BadSampleError,
    Sample,
    SkippedSampleError,
    StoredExample,
)
from t2tp.problems.data.shards import ShardWriter, finished, finished_names, shard_name
from t2tp.problems.prepare.open_samples import open_samples
from t2tp.problems.prepare.preparable import Preparable
from t2tp.problems.prepare.settings import GenerationSettings
from t2tp.problems.prepare.shard_workers import SampleReport, make_in_processes
from t2tp.problems.prepare.split_samples import BadSamples, ShuffledSamples

# By default, a shard has at least about `_SHARD_SAMPLES` samples, and a split at most
# `_MOST_SHARDS` shards.
_SHARD_SAMPLES = 500
_MOST_SHARDS = 64

# The total time is estimated by encoding at most `_TRIED_SAMPLES` samples, for about
# `_TRIED_SECONDS`. Starting a worker takes seconds, so each worker must have `_WORKER_SECONDS` of
# work.
_TRIED_SAMPLES = 500
_TRIED_SECONDS = 0.5
_WORKER_SECONDS = 5.0

# Samples between two reports of a worker's progress.
_REPORT_EVERY = 64


# Default max number of workers; it is limited because each worker opens the problem's samples.
_MOST_WORKERS = 32


def default_workers() -> int:
    """Returns the default max number of processes: one per core, up to 32."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


class ChangedSourcesError(Exception):
    """Raised if an interrupted attempt had another number of samples."""


@dataclass(frozen=True)
class _Job:
    """A shard to generate."""

    split: str
    shard: int
    shards: int
    samples: int

    @property
    def name(self) -> str:
        return shard_name(self.split, self.shard, self.shards)

    @property
    def positions(self) -> tuple[int, int]:
        begin, end = (self.samples * edge // self.shards for edge in (self.shard, self.shard + 1))
        return begin, end

    @property
    def size(self) -> int:
        begin, end = self.positions
        return end - begin


def make_shards(
    problem: Preparable,
    directory: Path,
    tmp_dir: Path,
    sample_counts: Mapping[str, int],
    settings: GenerationSettings,
) -> tuple[dict[str, SplitSizes], dict[str, FileState]]:
    """Generates the shards that `directory` does not have yet.

    Returns:
      The sizes of each split, and all files of the shards.

    Raises:
      ChildProcessError: processes were killed several times; finished shards are kept.
      BadSampleError: too many samples are unusable; finished shards are kept.
      ChangedSourcesError: existing shards were made from another number of samples.
    """
    jobs = [
        _Job(split, shard, shards, count)
        for split, count in sample_counts.items()
        for shards in [_shards(split == problem.splits[0], count, settings.num_shards)]
        for shard in range(shards)
    ]
    made = {job: record[0] for job in jobs if (record := finished(directory, job.name))}
    # The plan does not include the number of samples. Another number moves them between shards.
    if finished_names(directory) - {job.name for job in jobs} or any(
        job.size != sizes.examples + sum(sizes.skipped.values()) for job, sizes in made.items()
    ):
        raise ChangedSourcesError(
            f"{problem.name} had another number of samples before the interruption"
        )
    num_bad = sum(sizes.skipped.get(BAD, 0) for sizes in made.values())
    todo = [job for job in jobs if job not in made]
    builder = _ShardBuilder(problem, directory, tmp_dir, settings.bad_limit(sample_counts))
    total = sum(job.size for job in todo)
    # Beam has its own workers, so no local workers are started.
    requested = settings.num_workers if settings.beam is None else 1
    num_workers = min(
        builder.workers_worth(todo, total) if requested is None else requested,
        len(todo),
        total // _SHARD_SAMPLES,
    )

    with ProgressBar(total, f"encoding {problem.name}") as progress:
        if settings.beam is not None and todo:
            from t2tp.problems.prepare.beam_shards import make_with_beam  # An optional dependency.

            make_with_beam(builder, todo, directory, settings.beam)
        elif num_workers > 1:
            make_in_processes(
                builder,
                todo,
                num_workers,
                progress,
                num_bad=lambda: sum(_num_bad(directory, job) for job in jobs),
                is_made=lambda job: bool(finished(directory, job.name)),
            )
        else:
            report = _LocalReport(progress, num_bad)
            for job in todo:
                builder.carry_out(job, report)
    remove_unfinished(directory)  # Files of workers that were killed.
    sizes: dict[str, list[SplitSizes]] = {split: [] for split in sample_counts}
    files: dict[str, FileState] = {}
    for job in jobs:
        record = finished(directory, job.name)
        if record is None:
            raise OSError(f"{directory / job.name} was written and cannot be read back")
        sizes[job.split].append(record[0])
        files |= record[1]
    total_sizes = {split: reduce(add, parts) for split, parts in sizes.items()}
    _check_bad(problem.name, total_sizes, settings.bad_limit(sample_counts))
    return total_sizes, files


def _num_bad(directory: Path, job: _Job) -> int:
    record = finished(directory, job.name)
    return record[0].skipped.get(BAD, 0) if record else 0


def _check_bad(problem: str, sizes: Mapping[str, SplitSizes], limit: int) -> None:
    """Raises BadSampleError if too many samples are bad; Beam's workers cannot check this."""
    num_bad = sum(each.skipped.get(BAD, 0) for each in sizes.values())
    if num_bad > limit:
        raise BadSampleError(
            f"{num_bad} samples of {problem} are bad, and at most {limit} may be:"
            " --max_bad_samples changes the limit"
        )


def _shards(is_train: bool, samples: int, num_shards: int | None) -> int:
    by_samples = max(1, min(samples // _SHARD_SAMPLES, _MOST_SHARDS))
    if num_shards is None:
        return by_samples
    return min(num_shards, samples if is_train else by_samples)


class _ShardBuilder:
    """Generates shards. It can be pickled; the receiving process opens the samples again."""

    def __init__(self, problem: Preparable, directory: Path, tmp_dir: Path, bad_limit: int):
        self._problem = problem
        self._directory = directory
        self._tmp_dir = tmp_dir
        self._bad_limit = bad_limit
        self._samples: dict[str, ShuffledSamples] = {}
        self._encode: Callable[[Sample], StoredExample] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without open samples, which cannot be pickled."""
        return {**self.__dict__, "_samples": {}, "_encode": None}

    def carry_out(self, job: _Job, report: SampleReport, directory: Path | None = None) -> None:
        """Generates a shard in `directory` if given, else in the directory of all shards."""
        if self._encode is None:
            self._encode = self._problem.encoder(self._directory)
        bad = BadSamples(self._problem.name, self._bad_limit, report.bad_sample)
        dtypes = self._problem.columns(self._directory)
        with ShardWriter(directory or self._directory, job.name, dtypes) as writer:
            for number, read in self._reads(job, report):
                sample = None
                try:
                    sample = read()
                    writer.add(*self._encode(sample))
                except SkippedSampleError as reason:
                    writer.skip(str(reason))
                except NOT_THE_SAMPLES_FAULT:
                    raise
                except Exception as error:  # a user's problem raises any type
                    writer.skip_bad(bad.add(job.split, number, error, sample))

    def workers_worth(self, jobs: Sequence[_Job], total: int) -> int:
        """Estimates the useful number of processes from the encoding time of some samples."""
        if default_workers() == 1 or not jobs:
            return 1
        encode = self._problem.encoder(self._directory)
        num_tried, start = 0, time.monotonic()
        for _, read in itertools.islice(self._reads(jobs[-1], None), _TRIED_SAMPLES):
            with contextlib.suppress(Exception):  # reported when the shard is made
                encode(read())
            num_tried += 1
            if time.monotonic() - start > _TRIED_SECONDS:
                break
        seconds = (time.monotonic() - start) * total / num_tried
        return max(1, min(default_workers(), int(seconds / _WORKER_SECONDS)))

    def _reads(
        self, job: _Job, report: SampleReport | None
    ) -> Iterator[tuple[int, Callable[[], Sample]]]:
        """Yields each sample's number, and a function that reads it; reports progress."""
        if job.split not in self._samples:
            samples = open_samples(self._problem, job.split, self._directory, self._tmp_dir)
            self._samples[job.split] = ShuffledSamples(samples)
        unreported = 0
        for number_and_read in self._samples[job.split].part(*job.positions):
            yield number_and_read
            unreported += 1
            if unreported == _REPORT_EVERY and report is not None:
                report.samples(unreported)
                unreported = 0
        if report is not None:
            report.samples(unreported)


class _LocalReport:
    """Counts the samples if this process encodes them itself, without workers."""

    def __init__(self, progress: ProgressBar, num_bad: int):
        self._progress = progress
        self._done = 0
        self._bad = num_bad

    def samples(self, count: int) -> None:
        self._done += count
        self._progress.show(self._done)

    def bad_sample(self) -> int:
        self._bad += 1
        return self._bad
