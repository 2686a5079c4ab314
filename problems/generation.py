"""Writes the shards of a problem's splits, several at a time, and only those that are missing.

The samples of a split have a fixed shuffled order, of which each shard has a contiguous part. So
the shards can be made in any order by any number of processes, and together they are always the
same. Neighbours in a source are often alike; shuffled, they make fair samples, and fair batches.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from t2tp.problems.manifest import BAD, FileState, SplitSizes
from t2tp.problems.progress import Progress
from t2tp.problems.sample_digest import ChangedSourcesError, SampleDigest
from t2tp.problems.samples import (
    NOT_THE_SAMPLES_FAULT,
    BadSamples,
    Sample,
    ShuffledSamples,
    SkippedSampleError,
    open_samples,
)
from t2tp.problems.samples import Samples as Samples  # also known from here
from t2tp.problems.shards import ShardWriter, finished, finished_names, read_checks, shard_name
from t2tp.problems.user_dir import import_user_dir, imported_user_dirs
from t2tp.quiet import quiet_import

if TYPE_CHECKING:
    from t2tp.problems.problem import Problem

# A shard has at least about so many samples, and a split at most so many shards, unless asked for.
_SHARD_SAMPLES = 500
_MOST_SHARDS = 64

# Of so many samples one may be bad, unless it is said how many.
_GOOD_FOR_A_BAD_ONE = 1000

# By some samples it is estimated how long all take: at most so many, for about so long. A worker
# is worth its start, which imports much, if it has so much to do.
_TRIED_SAMPLES = 500
_TRIED_SECONDS = 0.5
_WORKER_SECONDS = 5.0

# Samples after which a worker says how far it is.
_REPORT_EVERY = 64


# Most workers unless more are asked for: each holds a problem's samples open.
_MOST_WORKERS = 32


def default_workers() -> int:
    """Returns how many processes make data unless it is said: one for each core, up to 32."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


@dataclass(frozen=True)
class GenerationSettings:
    """How data are made, which hardly changes what they are.

    Attributes:
        num_shards: of the train split, and the most of another; None: one for each 500 samples, up
            to 64.
        num_workers: most processes; 1: this one; None: as many as are worth it, up to one for each
            core.
        max_bad_samples: how many samples that cannot be used are left out; None: one in 1,000.
    """

    num_shards: int | None = None
    num_workers: int | None = 1
    max_bad_samples: int | None = None


class Stored(NamedTuple):
    """An example as it is stored.

    Attributes:
        columns: integers [any number] for each column.
        text_bytes: length of its text in UTF-8; 0 where there is no text.
    """

    columns: dict[str, np.ndarray]
    text_bytes: int = 0


@dataclass(frozen=True)
class _Job:
    """One shard.

    Attributes:
        split, shard, shards: which one it is.
        samples: how many the split has.
        made_from: of a shard that is there already, the digest of the samples that it was made
            from: is it still theirs?
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
    def places(self) -> tuple[int, int]:
        begin, end = (self.samples * edge // self.shards for edge in (self.shard, self.shard + 1))
        return begin, end


def make_shards(
    problem: Problem,
    folder: Path,
    tmp_dir: Path,
    sample_counts: Mapping[str, int],
    settings: GenerationSettings,
) -> tuple[dict[str, SplitSizes], dict[str, FileState]]:
    """Makes the shards that `folder` does not have yet.

    Args:
        problem: opens the samples and encodes them.
        folder: gets the files; the problem's vocabulary is there.
        tmp_dir: where the problem's downloads are.
        sample_counts: number of samples of each split.
        settings: how. A new process is not worth less than 500 samples.

    Returns:
        The sizes of each split, and all files of the shards.

    Raises:
        ChildProcessError: a process died; the shards that were finished stay.
        BadSampleError: too many samples cannot be used; the shards that were finished stay.
        ChangedSourcesError: shards that are there already were made from other samples.
    """
    jobs = [
        _Job(split, shard, shards, count)
        for split, count in sample_counts.items()
        for shards in [_shards(split == problem.splits[0], count, settings.num_shards)]
        for shard in range(shards)
    ]
    if finished_names(folder) - {job.name for job in jobs}:
        raise ChangedSourcesError(f"{problem.name} had another number of samples")
    bad = 0
    todo: list[_Job] = []
    for job in jobs:
        if made := finished(folder, job.name):
            bad += made[0].skipped.get(BAD, 0)
            # Comparing is quicker than making, and finds a change before more is made.
            samples = read_checks(folder, job.name).samples
            todo.insert(0, dataclasses.replace(job, made_from=samples))
        else:
            todo.append(job)
    maker = _Maker(problem, folder, tmp_dir, bad_limit(sample_counts, settings))
    total = sum(end - begin for begin, end in (job.places for job in todo))
    asked = settings.num_workers
    num_workers = min(
        maker.workers_worth(todo, total) if asked is None else asked,
        len(todo),
        total // _SHARD_SAMPLES,
    )
    with Progress(total, f"encoding {problem.name}") as progress:
        if num_workers > 1:
            _make_in_processes(maker, todo, num_workers, progress, bad)
        else:
            _make_here(maker, todo, progress, bad)
    sizes: dict[str, list[SplitSizes]] = {split: [] for split in sample_counts}
    files: dict[str, FileState] = {}
    for job in jobs:
        made = finished(folder, job.name)
        if made is None:
            raise OSError(f"{folder / job.name} was written and cannot be read back")
        sizes[job.split].append(made[0])
        files |= made[1]
    return {split: reduce(add, parts) for split, parts in sizes.items()}, files


def bad_limit(sample_counts: Mapping[str, int], settings: GenerationSettings) -> int:
    """Returns how many samples may be bad."""
    if settings.max_bad_samples is not None:
        return settings.max_bad_samples
    return sum(sample_counts.values()) // _GOOD_FOR_A_BAD_ONE


def _shards(is_train: bool, samples: int, num_shards: int | None) -> int:
    by_samples = max(1, min(samples // _SHARD_SAMPLES, _MOST_SHARDS))
    if num_shards is None:
        return by_samples
    return min(num_shards, samples if is_train else by_samples)


class _Report(Protocol):
    """What is counted over all jobs."""

    def samples(self, count: int) -> None:
        """Adds to the samples that have been gone through."""

    def bad_sample(self) -> int:
        """Counts a bad sample, and returns how many there are."""


class _Maker:
    """Makes shards. It can be sent to another process, which opens the samples for itself."""

    def __init__(self, problem: Problem, folder: Path, tmp_dir: Path, bad_limit: int):
        self._problem = problem
        self._folder = folder
        self._tmp_dir = tmp_dir
        self._bad_limit = bad_limit
        self._samples: dict[str, ShuffledSamples] = {}
        self._encode: Callable[[Sample], Stored] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is sent: open samples, such as those of `text_files.Made`, cannot be."""
        return {**self.__dict__, "_samples": {}, "_encode": None}

    def carry_out(self, job: _Job, report: _Report) -> None:
        """Makes a shard, or looks whether it is still that of its samples."""
        if job.made_from:
            self._compare(job, report)
        else:
            self._make(job, report)

    def workers_worth(self, jobs: Sequence[_Job], total: int) -> int:
        """Returns how many processes are worth their start, by the time that some samples take."""
        if default_workers() == 1 or not jobs:
            return 1
        encode = self._problem.encoder(self._folder)
        done, begun = 0, time.monotonic()
        for _, read in itertools.islice(self._reads(jobs[-1], None), _TRIED_SAMPLES):
            with contextlib.suppress(Exception):  # which is said when the shard is made
                encode(read())
            done += 1
            if time.monotonic() - begun > _TRIED_SECONDS:
                break
        seconds = (time.monotonic() - begun) * total / done
        return max(1, min(default_workers(), int(seconds / _WORKER_SECONDS)))

    def _make(self, job: _Job, report: _Report) -> None:
        if self._encode is None:
            self._encode = self._problem.encoder(self._folder)
        bad = BadSamples(self._problem.name, self._bad_limit, report.bad_sample)
        dtypes = self._problem.columns(self._folder)
        with ShardWriter(self._folder, job.name, dtypes) as writer:
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
            except Exception:  # which is in the digest
                continue
        if digest.hexdigest() != job.made_from:
            raise ChangedSourcesError(
                f"{self._problem.name} had other samples of {job.split} before the interruption"
            )

    def _reads(
        self, job: _Job, report: _Report | None
    ) -> Iterator[tuple[int, Callable[[], Sample]]]:
        """Gives what reads each sample of a shard, and reports now and then how far it is."""
        if job.split not in self._samples:
            samples = open_samples(self._problem, job.split, self._folder, self._tmp_dir)
            self._samples[job.split] = ShuffledSamples(samples)
        unreported = 0
        for number_and_read in self._samples[job.split].part(*job.places):
            yield number_and_read
            unreported += 1
            if unreported == _REPORT_EVERY and report is not None:
                report.samples(unreported)
                unreported = 0
        if report is not None:
            report.samples(unreported)


class _ReportHere:
    """Of the process that shows the progress."""

    def __init__(self, progress: Progress, bad: int):
        self._progress = progress
        self._done = 0
        self._bad = bad

    def samples(self, count: int) -> None:
        self._done += count
        self._progress.show(self._done)

    def bad_sample(self) -> int:
        self._bad += 1
        return self._bad


class _SharedReport:
    """Of all workers; it can only be sent to one when it is started."""

    def __init__(self, context: BaseContext, bad: int):
        self._done = context.Value("q", 0)
        self._bad = context.Value("q", bad)

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


def _make_here(maker: _Maker, jobs: Sequence[_Job], progress: Progress, bad: int) -> None:
    report = _ReportHere(progress, bad)
    for job in jobs:
        maker.carry_out(job, report)


def _make_in_processes(
    maker: _Maker, jobs: Sequence[_Job], num_workers: int, progress: Progress, bad: int
) -> None:
    # Not forked: TensorFlow's threads, where it is loaded, do not survive that.
    context = multiprocessing.get_context("spawn")
    report = _SharedReport(context, bad)
    # The problem's class may be in a user's directory, which a worker has to import first.
    arguments = (imported_user_dirs(), pickle.dumps(maker), report)
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


# Of a worker process: set once at its start.
_worker: tuple[_Maker, _SharedReport]


def _begin_worker(user_dirs: Sequence[Path], pickled_maker: bytes, report: _SharedReport) -> None:
    global _worker
    with quiet_import():  # a user's directory may import TensorFlow
        for directory in user_dirs:
            import_user_dir(directory)
        _worker = (pickle.loads(pickled_maker), report)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A killed maker must not leave workers that write into the folder of the next one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_any([parent.sentinel])
        os._exit(1)


def _carry_out_in_worker(job: _Job) -> None:
    maker, report = _worker
    maker.carry_out(job, report)
