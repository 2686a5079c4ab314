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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path

from t2tp.atomic_file import remove_unfinished
from t2tp.problems.data.manifest import FileState, SplitSizes
from t2tp.problems.data.progress import ProgressBar
from t2tp.problems.data.sample import BadSampleError, Sample, SkippedSampleError, StoredExample
from t2tp.problems.data.shards import ShardWriter, finished, finished_names, shard_name
from t2tp.problems.prepare.open_samples import OpenSamples
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


def make_shards(samples: OpenSamples) -> tuple[dict[str, SplitSizes], dict[str, FileState]]:
    """Generates the shards that the directory of the data does not have yet.

    Returns:
      The sizes of each split, and all files of the shards.

    Raises:
      ChildProcessError: processes were killed several times; finished shards are kept.
      BadSampleError: too many samples are unusable; finished shards are kept.
      ChangedSourcesError: existing shards were made from another number of samples.
    """
    problem, directory, settings = samples.problem, samples.directory, samples.settings
    jobs = [
        _Job(split, shard, shards, count)
        for split, count in samples.counts.items()
        for shards in [_shards(split == problem.splits[0], count, settings.num_shards)]
        for shard in range(shards)
    ]

    def finished_jobs() -> dict[_Job, tuple[SplitSizes, dict[str, FileState]]]:
        return {job: record for job in jobs if (record := finished(directory, job.name))}

    made = finished_jobs()
    # The plan does not include the number of samples. Another number moves them between shards.
    if finished_names(directory) - {job.name for job in jobs} or any(
        job.size != sizes.examples + sum(sizes.skipped.values()) for job, (sizes, _) in made.items()
    ):
        raise ChangedSourcesError(
            f"{problem.name} had another number of samples before the interruption"
        )
    todo = [job for job in jobs if job not in made]
    builder = _ShardBuilder(samples)
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
            make_in_processes(builder, todo, num_workers, progress, finished_jobs)
        else:
            report = _LocalReport(progress, sum(sizes.bad for sizes, _ in made.values()))
            for job in todo:
                builder.carry_out(job, report)
    remove_unfinished(directory)  # Files of workers that were killed.
    made = finished_jobs()
    for job in jobs:
        if job not in made:
            raise OSError(f"{directory / job.name} was written and cannot be read back")
    sizes = {
        split: reduce(add, [part for job, (part, _) in made.items() if job.split == split])
        for split in samples.counts
    }
    # Beam's workers cannot check the number of all bad samples.
    num_bad, limit = sum(each.bad for each in sizes.values()), samples.bad_limit
    if num_bad > limit:
        raise BadSampleError(
            f"{num_bad} samples of {problem.name} are bad, and at most {limit} may be:"
            " --max_bad_samples changes the limit"
        )
    return sizes, {name: state for _, files in made.values() for name, state in files.items()}


def _shards(is_train: bool, samples: int, num_shards: int | None) -> int:
    by_samples = max(1, min(samples // _SHARD_SAMPLES, _MOST_SHARDS))
    if num_shards is None:
        return by_samples
    return min(num_shards, samples if is_train else by_samples)


class _ShardBuilder:
    """Generates shards. Pickle it before `carry_out`, which caches the encoder."""

    def __init__(self, samples: OpenSamples):
        self._samples = samples
        # A worker's copy of `samples` would have to count the samples of all splits again.
        self._bad_limit = samples.bad_limit

    @cached_property
    def _encode(self) -> Callable[[Sample], StoredExample]:
        return self._samples.problem.encoder(self._samples.directory)

    def carry_out(self, job: _Job, report: SampleReport, directory: Path | None = None) -> None:
        """Generates a shard in `directory` if given, else in the directory of all shards."""
        problem, data = self._samples.problem, self._samples.directory
        bad = BadSamples(problem.name, self._bad_limit, report.bad_sample)
        samples = ShuffledSamples(self._samples.open(job.split), job.split, bad)
        encode = self._encode
        with ShardWriter(directory or data, job.name, problem.columns(data)) as writer:
            outcomes = samples.outcomes(lambda sample: writer.add(*encode(sample)), *job.positions)
            for done, outcome in enumerate(outcomes, 1):
                if isinstance(outcome, BadSampleError):
                    writer.skip_bad(str(outcome))
                elif isinstance(outcome, SkippedSampleError):
                    writer.skip(str(outcome))
                if done % _REPORT_EVERY == 0:
                    report.samples(_REPORT_EVERY)
        report.samples(job.size % _REPORT_EVERY)

    def workers_worth(self, jobs: Sequence[_Job], total: int) -> int:
        """Estimates the useful number of processes from the encoding time of some samples."""
        if default_workers() == 1 or not jobs:
            return 1
        samples = ShuffledSamples(self._samples.open(jobs[-1].split))
        encode = self._samples.problem.encoder(self._samples.directory)
        num_tried, start = 0, time.monotonic()
        for _, read in itertools.islice(samples.part(*jobs[-1].positions), _TRIED_SAMPLES):
            with contextlib.suppress(Exception):  # reported when the shard is made
                encode(read())
            num_tried += 1
            if time.monotonic() - start > _TRIED_SECONDS:
                break
        seconds = (time.monotonic() - start) * total / num_tried
        return max(1, min(default_workers(), int(seconds / _WORKER_SECONDS)))


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
