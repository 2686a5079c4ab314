"""Writes the missing shards of a problem's splits, several at a time.

The samples of a split have a fixed shuffled order, and each shard is a contiguous range of it. So
any number of processes can make the shards in any order, and the result is always the same.
Neighbours in a source are often similar; shuffling makes every shard and batch representative.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import reduce
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.context import BaseContext
from operator import add
from pathlib import Path
from typing import Any, Protocol

from t2tp.problems.data.manifest import BAD, FileState, SplitSizes
from t2tp.problems.data.progress import ProgressBar
from t2tp.problems.data.sample import (
    NOT_THE_SAMPLES_FAULT,
    Sample,
    SkippedSampleError,
    StoredExample,
)
from t2tp.problems.data.sample_digest import ChangedSourcesError, SampleDigest
from t2tp.problems.data.shards import (
    ShardWriter,
    finished,
    finished_names,
    read_checks,
    shard_name,
)
from t2tp.problems.prepare.open_samples import open_samples
from t2tp.problems.prepare.preparable import Preparable
from t2tp.problems.prepare.settings import GenerationSettings
from t2tp.problems.prepare.split_samples import BadSamples, ShuffledSamples
from t2tp.problems.user_dir import import_user_dir, imported_user_dirs
from t2tp.quiet import quiet_import

# A shard has at least about this many samples, and a split at most this many shards by default.
_SHARD_SAMPLES = 500
_MOST_SHARDS = 64

# The total time is estimated from at most this many samples, within about this time. A worker,
# whose start imports much, is worthwhile if it has this many seconds of work.
_TRIED_SAMPLES = 500
_TRIED_SECONDS = 0.5
_WORKER_SECONDS = 5.0

# Samples between two reports of a worker's progress.
_REPORT_EVERY = 64


# Max number of workers by default: each opens a problem's samples.
_MOST_WORKERS = 32


def default_workers() -> int:
    """Returns the default max number of processes: one per core, up to 32."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


@dataclass(frozen=True)
class _Job:
    """One shard to make.

    Attributes:
        split, shard, shards: identify it.
        samples: number of samples of the split.
        made_from: of an existing shard, the digest of the samples that it was made from, which
            has to be compared; else "".
    """

    split: str
    shard: int
    shards: int
    samples: int
    made_from: str = ""

    @property
    def name(self) -> str:
        return shard_name(self.split, self.shard, self.shards)

    @property
    def positions(self) -> tuple[int, int]:
        begin, end = (self.samples * edge // self.shards for edge in (self.shard, self.shard + 1))
        return begin, end


def make_shards(
    problem: Preparable,
    directory: Path,
    tmp_dir: Path,
    sample_counts: Mapping[str, int],
    settings: GenerationSettings,
) -> tuple[dict[str, SplitSizes], dict[str, FileState]]:
    """Makes the shards that `directory` does not have yet.

    Args:
        problem: opens the samples and encodes them.
        directory: where the files are written; the problem's vocabulary is there.
        tmp_dir: where the problem's downloads are.
        sample_counts: number of samples of each split.
        settings: of the generation. A worker gets at least 500 samples.

    Returns:
        The sizes of each split, and all files of the shards.

    Raises:
        ChildProcessError: a process died; finished shards are kept.
        BadSampleError: too many samples cannot be used; finished shards are kept.
        ChangedSourcesError: existing shards were made from other samples.
    """
    jobs = [
        _Job(split, shard, shards, count)
        for split, count in sample_counts.items()
        for shards in [_shards(split == problem.splits[0], count, settings.num_shards)]
        for shard in range(shards)
    ]
    if finished_names(directory) - {job.name for job in jobs}:
        raise ChangedSourcesError(f"{problem.name} had another number of samples")
    num_bad = 0
    todo: list[_Job] = []
    for job in jobs:
        if record := finished(directory, job.name):
            num_bad += record[0].skipped.get(BAD, 0)
            # Comparing is faster than encoding, and finds a change before more is made.
            samples = read_checks(directory, job.name).samples
            todo.insert(0, dataclasses.replace(job, made_from=samples))
        else:
            todo.append(job)
    builder = _ShardBuilder(problem, directory, tmp_dir, settings.bad_limit(sample_counts))
    total = sum(end - begin for begin, end in (job.positions for job in todo))
    requested = settings.num_workers
    num_workers = min(
        builder.workers_worth(todo, total) if requested is None else requested,
        len(todo),
        total // _SHARD_SAMPLES,
    )
    with ProgressBar(total, f"encoding {problem.name}") as progress:
        if num_workers > 1:
            _make_in_processes(builder, todo, num_workers, progress, num_bad)
        else:
            _make_in_this_process(builder, todo, progress, num_bad)
    sizes: dict[str, list[SplitSizes]] = {split: [] for split in sample_counts}
    files: dict[str, FileState] = {}
    for job in jobs:
        record = finished(directory, job.name)
        if record is None:
            raise OSError(f"{directory / job.name} was written and cannot be read back")
        sizes[job.split].append(record[0])
        files |= record[1]
    return {split: reduce(add, parts) for split, parts in sizes.items()}, files


def _shards(is_train: bool, samples: int, num_shards: int | None) -> int:
    by_samples = max(1, min(samples // _SHARD_SAMPLES, _MOST_SHARDS))
    if num_shards is None:
        return by_samples
    return min(num_shards, samples if is_train else by_samples)


class _Report(Protocol):
    """Counters over all jobs."""

    def samples(self, count: int) -> None:
        """Adds to the number of samples processed."""

    def bad_sample(self) -> int:
        """Counts a bad sample, and returns their number."""


class _ShardBuilder:
    """A builder of shards; it can be pickled for another process, which opens the samples again."""

    def __init__(self, problem: Preparable, directory: Path, tmp_dir: Path, bad_limit: int):
        self._problem = problem
        self._directory = directory
        self._tmp_dir = tmp_dir
        self._bad_limit = bad_limit
        self._samples: dict[str, ShuffledSamples] = {}
        self._encode: Callable[[Sample], StoredExample] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the picklable state: open samples, for instance from a file, are not."""
        return {**self.__dict__, "_samples": {}, "_encode": None}

    def carry_out(self, job: _Job, report: _Report) -> None:
        """Makes a shard, or checks that it is still that of its samples."""
        if job.made_from:
            self._compare(job, report)
        else:
            self._make(job, report)

    def workers_worth(self, jobs: Sequence[_Job], total: int) -> int:
        """Returns the worthwhile number of processes, estimated from the time of some samples."""
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

    def _make(self, job: _Job, report: _Report) -> None:
        if self._encode is None:
            self._encode = self._problem.encoder(self._directory)
        bad = BadSamples(self._problem.name, self._bad_limit, report.bad_sample)
        dtypes = self._problem.columns(self._directory)
        with ShardWriter(self._directory, job.name, dtypes) as writer:
            for number, read in self._reads(job, report):
                sample = None
                try:
                    sample = writer.samples.read(read)
                    writer.add(*self._encode(sample))
                except SkippedSampleError as reason:
                    writer.skip(str(reason))
                except NOT_THE_SAMPLES_FAULT:
                    raise
                except Exception as error:  # whatever a user's problem raises
                    writer.skip_bad(bad.add(job.split, number, error, sample))

    def _compare(self, job: _Job, report: _Report) -> None:
        digest = SampleDigest()
        for _, read in self._reads(job, report):
            try:
                digest.read(read)
            except NOT_THE_SAMPLES_FAULT:
                raise
            except Exception:  # which is part of the digest
                continue
        if digest.hexdigest() != job.made_from:
            raise ChangedSourcesError(
                f"{self._problem.name} had other samples of {job.split} before the interruption"
            )

    def _reads(
        self, job: _Job, report: _Report | None
    ) -> Iterator[tuple[int, Callable[[], Sample]]]:
        """Yields a function that reads each sample of a shard; reports progress at intervals."""
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
    """The report in the process that shows the progress."""

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


class _SharedReport:
    """The report of all workers; it can be sent to a worker only at its start."""

    def __init__(self, context: BaseContext, num_bad: int):
        self._done = context.Value("q", 0)
        self._bad = context.Value("q", num_bad)

    @property
    def done(self) -> int:
        return self._done.value

    def samples(self, count: int) -> None:
        with self._done.get_lock():
            self._done.value += count

    def bad_sample(self) -> int:
        with self._bad.get_lock():
            self._bad.value += 1
            return self._bad.value


def _make_in_this_process(
    builder: _ShardBuilder, jobs: Sequence[_Job], progress: ProgressBar, num_bad: int
) -> None:
    report = _LocalReport(progress, num_bad)
    for job in jobs:
        builder.carry_out(job, report)


def _make_in_processes(
    builder: _ShardBuilder,
    jobs: Sequence[_Job],
    num_workers: int,
    progress: ProgressBar,
    num_bad: int,
) -> None:
    # Not forked: TensorFlow's threads, where it is loaded, do not survive that.
    context = multiprocessing.get_context("spawn")
    report = _SharedReport(context, num_bad)
    # The problem's class may be in a user's directory, which a worker has to import first.
    arguments = (imported_user_dirs(), pickle.dumps(builder), report)
    with ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_begin_worker, initargs=arguments
    ) as pool:
        pending = {pool.submit(_carry_out_in_worker, job) for job in jobs}
        try:
            while pending:
                ended, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
                for job in ended:
                    job.result()
                progress.show(report.done)
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process was killed, perhaps for lack of memory: run again to go on with "
                f"what was finished, perhaps with fewer than --num_workers={num_workers}"
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


# State of a worker process, set at its start.
_worker: tuple[_ShardBuilder, _SharedReport]


def _begin_worker(user_dirs: Sequence[Path], pickled_maker: bytes, report: _SharedReport) -> None:
    global _worker
    with quiet_import():  # a user's directory may import TensorFlow
        for directory in user_dirs:
            import_user_dir(directory)
        _worker = (pickle.loads(pickled_maker), report)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """Exits a worker whose parent was killed, lest it write into the next run's directory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_any([parent.sentinel])
        os._exit(1)


def _carry_out_in_worker(job: _Job) -> None:
    builder, report = _worker
    builder.carry_out(job, report)
